"""`shoal token`: making, listing and revoking tokens, with and without a Shoal that runs on the home directory."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.unit.surfaces.cli.conftest import Server, Shoal, running


@pytest.fixture(autouse=True)
def configured(shoal: Shoal) -> None:
    """A home with the agent `main`."""
    assert shoal("init").code == 0


def status(server: Server, token: str, path: str = "/api/threads") -> int:
    """What the API answers to somebody with this token."""
    request = urllib.request.Request(f"{server.address}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


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


@pytest.mark.slow
def test_a_running_shoal_makes_knows_and_forgets_it(shoal: Shoal, home: Path) -> None:
    before = shoal("token", "create", "early", "--scope", "read").out.strip()
    with running(home) as server:
        made = json.loads(shoal("token", "create", "ben", "--scope", "chat", "--expires", "2d", "--json").out)
        assert (made["token"]["person"], made["token"]["created_by"]) == ("web:ben", "web:owner")
        assert status(server, before) == status(server, made["secret"]) == 200
        assert status(server, made["secret"], "/api/audit") == 403
        used = {one["name"]: bool(one["used_on"]) for one in json.loads(shoal("token", "list", "--json").out)}
        assert used == {"ben": True, "early": True}
        assert shoal("token", "revoke", "ben").out == "ben is revoked.\n"
        assert (status(server, before), status(server, made["secret"])) == (200, 401)
        again = shoal("token", "revoke", "ben")
        assert (again.code, again.err) == (
            1,
            "shoal: There is no token 'ben'; 'shoal token list' shows those there are.\n",
        )
    assert shoal("token", "revoke", "early").code == 0
    assert json.loads(shoal("token", "list", "--json").out) == []


def test_the_audit_log_tells_who_made_and_revoked_it(shoal: Shoal) -> None:
    shoal("token", "create", "ben", "--scope", "approve", "--agent", "main")
    shoal("token", "revoke", "ben")
    entries = [row["entry"] for row in json.loads(shoal("audit", "tail", "--chain", "tokens", "--json").out)]
    assert [(one["action"], one["user"], one.get("detail", "")) for one in entries] == [
        ("create ben", "web:owner", "approve as web:ben, agent main, for good"),
        ("revoke ben", "web:owner", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Ben", "--scope", "chat"), "A token's name has 1 to 64"),
        (("ben", "--scope", "chat", "--agent", "nobody"), "There is no agent 'nobody'. There are: main."),
        (("ben", "--scope", "admin", "--agent", "main"), "changes every agent"),
        (("ben", "--scope", "chat", "--as", "telegram:1"), "is not a person: write PLATFORM:USER"),
        (("ben", "--scope", "chat", "--as", "ada"), "is not a person: write PLATFORM:USER"),
        (("ben", "--scope", "chat", "--as", "web:telegram:1"), "A person of the page is web:NAME"),
        (("ben", "--scope", "chat", "--as", "openai:ben"), "openai:ben has no access"),
        (("owner", "--scope", "chat"), "would speak as the owner"),
        (("ben", "--scope", "chat", "--expires", "soon"), "is not an expiry: write"),
        (("ben", "--scope", "chat", "--expires", "2020-01-01"), "is in the past"),
    ],
)
def test_what_cannot_be_is_said_and_makes_nothing(shoal: Shoal, arguments: tuple[str, ...], words: str) -> None:
    ran = shoal("token", "create", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
    assert json.loads(shoal("token", "list", "--json").out) == []


def test_an_unknown_scope_is_a_mistake_of_usage(shoal: Shoal) -> None:
    assert shoal("token", "create", "ben", "--scope", "all").code == 2
