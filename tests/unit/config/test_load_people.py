"""Linked identities: the PLATFORM:USER form, and conflicts between people."""

from pathlib import Path

import pytest

from shoal.config import ConfigError, load_config


def people(**found: list[str]) -> dict[str, object]:
    return {"access": {"people": {name: {"identities": identities} for name, identities in found.items()}}}


def test_a_user_id_may_contain_colons(tmp_path: Path) -> None:
    config = load_config(tmp_path, {}, people(ada=["matrix:@ada:example.org", "telegram:4711"]))
    assert config.access.people["ada"].identities == ("matrix:@ada:example.org", "telegram:4711")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (people(ada=["telegram"]), "access.people.ada.identities"),
        (people(ada=["a:1"], bob=["b:1", "a:1"]), "access.people.bob.identities has a:1, which also belongs to ada"),
    ],
)
def test_an_invalid_identity_is_an_error(tmp_path: Path, found: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace(".", r"\.")):
        load_config(tmp_path, {}, found)
