"""`shoal docs` prints a page of the documentation, wherever it was installed from."""

from tests.unit.surfaces.cli.conftest import Shoal


def test_a_page_is_printed(shoal: Shoal) -> None:
    assert shoal("docs", "import").out.startswith("# Coming from another product")
    assert shoal("docs", "docs/platforms/slack.md").out.startswith("# ")
    assert "import.md" in shoal("docs").out


def test_a_page_that_is_not_there_is_named_with_the_nearest(shoal: Shoal) -> None:
    ran = shoal("docs", "imprt")
    assert (ran.code, ran.err) == (1, "shoal: There is no page 'imprt'. Did you mean import?\n")
    assert shoal("docs", "../README").code == 1
