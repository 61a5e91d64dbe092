"""docs/http.md lists every call of the API."""

from tests.http_table import PAGE, page


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tests.http_table`"
