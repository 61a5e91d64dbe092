"""docs/cli.md describes every command in its current form."""

from tests.command_table import PAGE, page


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tests.command_table`"
