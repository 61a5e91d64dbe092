"""docs/configuration.md matches the code for every key."""

from pathlib import Path

import msgspec
import pytest
from tests.tidy.configuration_page import descriptions, reference, sections, undocumented

from shoal.config.load import hint_at, is_live
from shoal.kernel.schema import keys
from shoal.kernel.section import Section
from shoal.kernel.settings_platforms import AccountSettings

ROOT = Path(__file__).resolve().parents[3]


def test_every_key_is_described() -> None:
    assert undocumented() == []


def test_a_description_names_its_unit_or_quantity() -> None:
    units = ("seconds", "bytes", "tokens", "hours", "minutes", "days", "usd", "chars")
    bare = [
        f"{path}.{name}"
        for path, kind in sections()
        for name, text in descriptions(kind).items()
        for unit in units
        if name.split("_")[-1] == unit
        and unit.replace("usd", "us dollars").replace("chars", "characters") not in text.lower()
    ]
    assert bare == []


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m tests.tidy.configuration_page"


def test_every_live_setting_exists_and_is_marked_in_the_reference() -> None:
    kinds = [kind for _, kind in sections() if issubclass(kind, Section)]
    assert not [(kind, name) for kind in kinds for name in kind.live - keys(kind).keys()]
    accounts = [kind for kind in kinds if issubclass(kind, AccountSettings)]
    repeated = len(AccountSettings.live) * (len(accounts) - 1)  # described once for all accounts
    assert sum(len(kind.live) for kind in kinds) - repeated == reference().count("**Live.**")


@pytest.mark.parametrize(
    ("key", "live"),
    [
        ("model.name", True),
        ("model.fallback", False),
        ("providers.openai.api_key", True),
        ("providers.name.timeout_seconds", False),
        ("platforms.telegram.token", True),
        ("platforms.telegram.work.owner", True),
        ("platforms.telegram.work.allow", False),
        ("platforms.webhook.mine.enabled", True),
        ("mcp.files.env.KEY", True),
        ("mcp.enabled.sandbox", False),
        ("mailbox.pause_seconds", False),
        ("nothing.there", False),
    ],
)
def test_a_section_declares_its_live_settings(key: str, live: bool) -> None:
    assert is_live(tuple(key.split("."))) is live


def test_a_key_without_a_description_is_detected() -> None:
    class Bare(msgspec.Struct):
        """A record."""

        said: int = 1
        """Is described."""
        silent: int = 2

    assert descriptions(Bare) == {"said": "Is described."}


def test_the_page_shows_every_section_and_key() -> None:
    page = reference()
    for path, kind in sections():
        assert f"`[{path}]`" in page
        names = path.split(".")
        assert hint_at(tuple(names)) is not None
        assert keys(kind)
