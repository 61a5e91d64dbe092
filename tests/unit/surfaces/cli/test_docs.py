"""`shoal docs` prints a page of the documentation, however Shoal was installed."""

from tests.unit.surfaces.cli.conftest import Shoal

from shoal.surfaces.cli.docs import matches


def test_a_page_is_printed(shoal: Shoal) -> None:
    assert shoal("docs", "import").out.startswith("# Import from another product")
    assert shoal("docs", "docs/platforms/slack.md").out.startswith("# ")
    assert "import.md" in shoal("docs").out


def test_a_task_word_prints_its_page(shoal: Shoal) -> None:
    assert shoal("docs", "ollama").out.startswith("# Use Ollama or another model on your own machine")
    assert shoal("docs", "home", "assistant").out.startswith("# Add an MCP server")
    assert shoal("docs", "backup").out.startswith("# Back up every night")


def test_several_pages_are_listed_with_the_commands_that_print_them(shoal: Shoal) -> None:
    lines = shoal("docs", "chat").out.splitlines()
    assert len(lines) > 3
    assert all(" docs " in line for line in lines)
    assert any(line.endswith("  Connect Telegram") for line in lines)


def test_page_names_precede_tasks_titles_headings_and_text() -> None:
    texts = {
        "README": "# Index\n\n| keep bees | [hives](how-to/hives.md) |\n",
        "honey": "# Honey\n",
        "how-to/hives": "# Wood\n",
        "wax": "# Candles\n\n## Bees\n",
        "sting": "# Ouch\n\nA bear.\n",
        "decisions/001-bear": "# Bear\n",
    }
    assert matches(texts, "README") == ["README"]
    assert matches(texts, "honey") == ["honey"]
    assert matches(texts, "hives") == ["how-to/hives"]
    assert matches(texts, "bees") == ["how-to/hives"]
    assert matches(texts, "candles") == ["wax"]
    assert matches(texts, "bear") == ["sting"]
    assert matches(texts, "decisions/001-bear") == ["decisions/001-bear"]


def test_an_unmatched_word_is_named(shoal: Shoal) -> None:
    ran = shoal("docs", "zeppelin")
    assert (ran.code, ran.err) == (1, "shoal: No page mentions 'zeppelin'. Run 'shoal docs' to list all pages.\n")
