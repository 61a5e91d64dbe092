"""The example settings on each platform's setup page load and create an account."""

import re
from pathlib import Path

import pytest

from shoal.accounts import accounts_of
from shoal.config import load_config

PAGES = Path(__file__).resolve().parents[3] / "docs" / "platforms"
SNIPPETS = [
    (page.name, code)
    for page in sorted(PAGES.glob("*.md"))
    for code in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_the_settings_on_a_setup_page_create_an_account(page: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(code)
    assert accounts_of(load_config(tmp_path, {}, {})), page


def test_every_platform_has_a_setup_page_with_settings() -> None:
    assert {page for page, _ in SNIPPETS} == {page.name for page in PAGES.glob("*.md")} - {"README.md"}
