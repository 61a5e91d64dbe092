"""Permission rules over the API: added, changed and removed in shoal.toml, with immediate effect."""

import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.test_http_setup import Stand, running

from shoal.kernel.permissions import TokenScope
from shoal.threads.access_tokens import AccessTokens, NewToken

TOLD = """# written by hand
[permissions]
default_profile = "standard"  # the usual

[permissions.profiles.builder]
extends = "locked"
allow = ["tool:bash:ls"]

[[permissions.overrides]]  # of last year
users = ["telegram:7"]
allow = ["tool:bash:(make|ls).*"]
deny = ["tool:bash:rm .*"]
"""


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncGenerator[Stand]:
    async with running(tmp_path / "home", TOLD) as started:
        yield started


class Rule(msgspec.Struct):
    """A rule as the API returns it."""

    id: str
    list: str
    pattern: str
    words: str
    profile: str
    agents: tuple[str, ...]
    users: tuple[str, ...]


async def rules(stand: Stand) -> list[Rule]:
    return msgspec.json.decode((await stand.client.get("/api/permissions/rules")).content, type=list[Rule])


async def decision(stand: Stand, shell: str, **by: str) -> str:
    answer = await stand.client.post("/api/permissions/check", json={"shell": shell, **(by or {"agent": "main"})})
    return str(answer.json()["decision"])


def subject(text: str, *, beginning: bool = False) -> dict[str, object]:
    return {"subject": {"what": "command", "text": text, "beginning": beginning}}


async def test_rules_take_effect_immediately(stand: Stand) -> None:
    assert await decision(stand, "git status -s") == "ask"
    about = subject("git status", beginning=True)
    await stand.post("/api/permissions/rules", {"list": "allow", **about, "agents": ["main"]}, 201)
    assert await decision(stand, "git status -s") == "allow"
    rule = next(rule for rule in await rules(stand) if "git" in rule.pattern)
    assert (rule.words, rule.agents) == ("the command git status, with any arguments", ("main",))

    await stand.put(f"/api/permissions/rules/{rule.id}", {"list": "deny", **about})
    assert await decision(stand, "git status -s") == "deny"
    changed = next(rule for rule in await rules(stand) if "git" in rule.pattern)
    assert (changed.list, changed.agents) == ("deny", ("main",))
    assert (await stand.client.delete(f"/api/permissions/rules/{rule.id}")).status_code == 404

    assert (await stand.client.delete(f"/api/permissions/rules/{changed.id}")).json() == {"removed": True}
    assert await decision(stand, "git status -s") == "ask"
    assert tomllib.loads(stand.written()[0])["permissions"] == tomllib.loads(TOLD)["permissions"]
    for line in ("# written by hand", "# the usual", "# of last year"):
        assert line in stand.written()[0]
    audit = (await stand.client.get("/api/audit")).json()
    said = [entry["entry"]["action"] for entry in audit if entry["entry"]["kind"] == "setup"]
    assert [action.partition(" tool:")[0] for action in said] == [
        "add rule allow", "change rule allow", "remove rule deny",
    ]  # fmt: skip


async def test_removing_one_of_several_rules_keeps_the_others(stand: Stand) -> None:
    first = next(rule for rule in await rules(stand) if rule.list == "deny")
    assert (first.users, first.words) == (("telegram:7",), "")
    await stand.client.delete(f"/api/permissions/rules/{first.id}")
    (left,) = tomllib.loads(stand.written()[0])["permissions"]["overrides"]
    assert left == {"users": ["telegram:7"], "allow": ["tool:bash:(make|ls).*"]}


async def test_a_custom_profile_can_be_changed(stand: Stand) -> None:
    await stand.post("/api/permissions/rules", {"list": "ask", **subject("make"), "profile": "builder"}, 201)
    assert await decision(stand, "make", profile="builder") == "ask"
    rule = next(rule for rule in await rules(stand) if rule.list == "ask")
    await stand.put(f"/api/permissions/rules/{rule.id}", {"list": "allow", **subject("make all")})
    assert [await decision(stand, command, profile="builder") for command in ("make", "make all")] == ["deny", "allow"]


@pytest.mark.parametrize("copied", ["standard", "guarded", "locked", "open", "builder"])
async def test_a_copied_profile_behaves_like_the_original_until_it_is_changed(stand: Stand, copied: str) -> None:
    await stand.post("/api/permissions/profiles", {"name": "mine", "copies": copied}, 201)
    listed = {profile["name"]: profile for profile in (await stand.client.get("/api/permissions/profiles")).json()}
    assert listed["mine"]["rules"] == listed[copied]["rules"]
    assert not listed["mine"]["built_in"]
    for command in ("make", "git push", "rm -rf /"):
        assert await decision(stand, command, profile="mine") == await decision(stand, command, profile=copied)
    await stand.post("/api/permissions/rules", {"list": "deny", **subject("make"), "profile": "mine"}, 201)
    assert await decision(stand, "make", profile="mine") == "deny"
    assert (await stand.client.delete("/api/permissions/profiles/mine")).status_code == 200
    assert "mine" not in str((await stand.client.get("/api/permissions/profiles")).json())


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"name": "builder", "copies": "standard"}, 409, "named builder already exists"),
        ({"name": "open", "copies": "standard"}, 409, "named open already exists"),
        ({"name": "mine", "copies": "nosuch"}, 400, "Profiles: "),
        ({"name": "my profile", "copies": "standard"}, 400, "name"),
    ],
)
async def test_an_invalid_profile_changes_nothing(stand: Stand, body: dict[str, object], status: int, why: str) -> None:
    before = stand.written()
    assert why in await stand.post("/api/permissions/profiles", body, status)
    assert stand.written() == before


async def test_a_profile_in_use_cannot_be_deleted(stand: Stand) -> None:
    await stand.post("/api/permissions/profiles", {"name": "mine", "copies": "open"}, 201)
    changed = await stand.client.patch("/api/agents/main", json={"settings": {"profile": "mine"}})
    assert changed.status_code == 200
    before = stand.written()
    for name, status, why in (
        ("mine", 409, "The profile mine is in use by main."),
        ("open", 404, "No custom profile named 'open'"),
    ):
        answer = await stand.client.delete(f"/api/permissions/profiles/{name}")
        assert (answer.status_code, why in answer.text) == (status, True), answer.text
    assert stand.written() == before


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"list": "allow", **subject("ls"), "profile": "standard"}, 409, "is built in and cannot be changed."),
        ({"list": "allow", **subject("ls"), "profile": "nosuch"}, 400, "Profiles: "),
        ({"list": "allow", **subject("ls"), "agents": ["nosuch"]}, 404, "No agent"),
        ({"list": "allow", "subject": {"what": "tool", "text": "nosuch"}}, 400, "No tool"),
        ({"list": "allow", "pattern": "tool:bash:(ls"}, 400, "not a regular expression"),
        ({"list": "allow"}, 400, "Specify either a `subject` or a `pattern`"),
        ({"list": "sometimes", **subject("ls")}, 400, "sometimes"),
    ],
)
async def test_an_invalid_rule_changes_nothing(stand: Stand, body: dict[str, object], status: int, why: str) -> None:
    before = stand.written()
    said = await stand.post("/api/permissions/rules", body, status)
    assert why in said
    assert stand.written() == before


@pytest.mark.parametrize("scope", ["read", "approve", "admin"])
async def test_only_the_owner_changes_rules(stand: Stand, scope: TokenScope) -> None:
    _, token = await stand.app[AccessTokens].create(NewToken("ben", scope, "web:ben"), "web:owner")
    headers = {"Authorization": f"Bearer {token}"}
    assert (await stand.client.get("/api/permissions/rules", headers=headers)).status_code == 200
    known = (await rules(stand))[0]
    calls = (
        ("POST", "/api/permissions/rules", {"list": "allow", **subject("ls")}),
        ("PUT", f"/api/permissions/rules/{known.id}", {"list": "allow", **subject("ls")}),
        ("DELETE", f"/api/permissions/rules/{known.id}", None),
    )
    for method, path, body in calls:
        answer = await stand.client.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403, (method, answer.text)


async def test_an_overriding_variable_is_reported(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PERMISSIONS__DEFAULT_PROFILE", "locked")
    said = await stand.post("/api/permissions/rules", {"list": "allow", **subject("ls")}, 400)
    assert "SHOAL_PERMISSIONS__DEFAULT_PROFILE overrides the file" in said
