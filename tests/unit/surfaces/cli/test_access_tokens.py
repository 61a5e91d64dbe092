"""`shoal token`: creating, listing and revoking tokens, with and without a running Shoal."""

import json
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Shoal


@pytest.fixture(autouse=True)
def configured(shoal: Shoal) -> None:
    assert shoal("init").code == 0


def test_a_token_is_printed_once_and_only_its_digest_is_kept(shoal: Shoal, home: Path) -> None:
    made = shoal("token", "create", "ben", "--scope", "chat")
    assert made.code == 0
    secret = made.out.strip()
    assert secret.startswith("shoal_")
    assert secret not in made.err
    listed = shoal("token", "list")
    assert "web:ben" in listed.out
    assert secret not in listed.out
    stored = b"".join(file.read_bytes() for file in home.glob("shoal.db*"))
    assert b"web:ben" in stored
    assert secret.encode() not in stored


def test_the_audit_log_records_who_created_and_revoked_a_token(shoal: Shoal) -> None:
    shoal("token", "create", "ben", "--scope", "approve", "--agent", "main")
    shoal("token", "revoke", "ben")
    entries = [row["entry"] for row in json.loads(shoal("audit", "tail", "--chain", "tokens", "--json").out)]
    assert [(one["action"], one["user"], one.get("detail", "")) for one in entries] == [
        ("create ben", "web:owner", "approve as web:ben, agent main, without expiry"),
        ("revoke ben", "web:owner", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Ben", "--scope", "chat"), "is not a valid token name. Use 1 to 64"),
        (("ben", "--scope", "chat", "--agent", "nobody"), "No agent named 'nobody'. Agents: main."),
        (("ben", "--scope", "admin", "--agent", "main"), "covers every agent"),
        (("ben", "--scope", "chat", "--as", "telegram:1"), "is not a valid person. Use PLATFORM:USER"),
        (("ben", "--scope", "chat", "--as", "ada"), "is not a valid person. Use PLATFORM:USER"),
        (("ben", "--scope", "chat", "--as", "web:telegram:1"), "A page user is web:NAME"),
        (("ben", "--scope", "chat", "--as", "openai:ben"), "openai:ben has no access"),
        (("owner", "--scope", "chat"), "would act as the owner"),
        (("ben", "--scope", "chat", "--expires", "soon"), "is not a valid expiry. Use"),
        (("ben", "--scope", "chat", "--expires", "2020-01-01"), "is in the past"),
    ],
)
def test_an_invalid_request_is_reported_and_creates_nothing(
    shoal: Shoal, arguments: tuple[str, ...], words: str
) -> None:
    ran = shoal("token", "create", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
    assert json.loads(shoal("token", "list", "--json").out) == []


def test_an_unknown_scope_is_a_usage_error(shoal: Shoal) -> None:
    assert shoal("token", "create", "ben", "--scope", "all").code == 2
