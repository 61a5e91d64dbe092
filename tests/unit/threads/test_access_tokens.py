"""Tokens and their owners: a token grants no rights beyond the access rules."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import ThreadId, is_personal, make_thread_id, personal_channel
from shoal.kernel.messages import Author
from shoal.kernel.permissions import Asker, parse_expiry
from shoal.permissions.access import AccessRules, Links, People, Person, is_among
from shoal.permissions.redact import Redactor
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing import ManualClock
from shoal.testing.database import empty_database
from shoal.threads.access_tokens import AccessTokens, NewToken
from shoal.threads.pairing import Pairing
from shoal.threads.scope import noted_channel

RULES = {
    "web": AccessRules(("owner",), ("trudy",)),
    "telegram": AccessRules(("1",), ("2", "role:crew", "*"), ("harbour",)),
    "discord": AccessRules(("9",), ("8",)),
}
PEOPLE = People(
    [
        Person(("telegram:2", "web:ada"), name="ada"),
        Person(("web:mate", "telegram:7"), ("crew",), "mate"),
        Person(("discord:9", "web:boss"), name="boss"),
        Person(("discord:5", "telegram:1"), name="captain"),
    ]
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(tmp_path: Path, clock: ManualClock) -> AsyncIterator[AccessTokens]:
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db")), clock)
    yield AccessTokens(store, clock, Pairing(store, clock), Links(PEOPLE, RULES), lambda: ("main",))
    await store.close()


@pytest.mark.parametrize(
    ("person", "identity", "name", "trusted"),
    [
        ("", "web:ben", "ben", False),
        ("web:trudy", "web:trudy", "trudy", True),
        ("web:ada", "web:ada", "ada", True),  # the same person as telegram:2, who is on the allow-list
        ("ada", "telegram:2", "ada", True),
        ("telegram:3", "telegram:3", "ben", False),  # allowed by `*` on Telegram, without further rights
        ("telegram:1", "telegram:1", "captain", True),
        ("captain", "discord:5", "captain", True),  # the owner on Telegram is the owner on Discord
        ("telegram:7", "telegram:7", "mate", True),  # trusted through a role in the configuration
        ("boss", "discord:9", "boss", True),
        ("owner", "web:owner", "owner", True),
    ],
)
async def test_a_tokens_person_comes_from_the_rules(
    tokens: AccessTokens, person: str, identity: str, name: str, trusted: bool
) -> None:
    token, _ = await tokens.create(NewToken("ben", "chat", person), "web:owner")
    author = await tokens.author(token)
    assert author is not None
    assert (token.person, author.id, author.name, author.trusted) == (identity, identity, name, trusted)


@pytest.mark.parametrize(
    "person", ["discord:7", "slack:1", "ben", "telegram:", ":1", "web:", "web:Ben", "web:a:b", " "]
)
async def test_a_token_gives_no_access_that_the_rules_deny(tokens: AccessTokens, person: str) -> None:
    with pytest.raises(InvalidInput):
        await tokens.create(NewToken("ben", "chat", person), "web:owner")
    assert await tokens.all() == []


async def test_a_paired_person_has_token_access_under_linked_identities(
    tokens: AccessTokens,
) -> None:
    pat = Person(("telegram:5", "web:pat", "discord:6", "irc:7"), name="pat")  # irc has no rules
    tokens = replace(tokens, links=Links(People([pat]), {**RULES, "telegram": AccessRules(("1",))}))
    for person in ("telegram:5", "discord:6"):
        with pytest.raises(InvalidInput):
            await tokens.create(NewToken("ben", "chat", person), "web:owner")
    code = await tokens.pairing.ask("telegram", Author("5", trusted=False))
    await tokens.pairing.confirm(code, ("telegram",), "telegram:1")
    for person in ("telegram:5", "discord:6", "web:pat"):
        token, _ = await tokens.create(NewToken(person.replace(":", "-"), "chat", person), "web:owner")
        author = await tokens.author(token)
        assert author is not None
        assert author.trusted


async def test_a_token_is_trusted_if_everyone_is_trusted(tokens: AccessTokens) -> None:
    everybody = AccessRules(("1",), ("*",), ("harbour",), trust_everybody=True)
    tokens = replace(tokens, links=Links(People(), {**RULES, "telegram": everybody}))
    token, _ = await tokens.create(NewToken("ben", "chat", "telegram:3"), "web:owner")
    author = await tokens.author(token)
    assert author is not None
    assert author.trusted


async def test_a_stored_token_digest_gives_no_access(tokens: AccessTokens) -> None:
    token, secret = await tokens.create(NewToken("ben", "chat"), "web:owner")
    assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert await tokens.find(secret) == token
    for other in (token.digest, f"shoal_{token.digest}", secret[:-1], secret + "x", secret.upper(), "", "shoal_"):
        assert await tokens.find(other) is None
    assert secret not in repr(token)
    assert secret not in Redactor().redact(f"with {secret} in it")


async def test_a_token_expires_on_time(tokens: AccessTokens, clock: ManualClock) -> None:
    token, secret = await tokens.create(NewToken("ben", "chat", expires="2h"), "web:owner")
    assert await tokens.is_valid(token)
    await clock.advance(7199)
    assert await tokens.is_valid(token)
    await clock.advance(1)
    assert tokens.has_expired(token)
    assert not await tokens.is_valid(token)
    assert await tokens.find(secret) == token  # an expired token is found, to report why it is rejected


async def test_a_tokens_last_use_is_recorded_by_day(tokens: AccessTokens, clock: ManualClock) -> None:
    token, _ = await tokens.create(NewToken("ben", "chat"), "web:owner")
    await tokens.note_use(token)
    (found,) = await tokens.all()
    assert found.used_on == clock.now().date().isoformat()


PAST = ("2020-01-01", "2020-01-01T00:00:00Z")
NO_TIMES = ("", "1", "d", "0d", "-1d", "1y", "99999999d", "tomorrow", "2999-13-01", "2999-01-01T00:00:00", "1d ")


@pytest.mark.parametrize("text", [*PAST, *NO_TIMES, "9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"])
def test_a_past_or_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_expiry(text, ManualClock().now())


@given(st.integers(1, 99999), st.sampled_from("mhdw"))
def test_a_token_lifetime_starts_now(count: int, unit: str) -> None:
    now = ManualClock().now()
    seconds = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}[unit]
    assert parse_expiry(f"{count}{unit}", now) == now + timedelta(seconds=count * seconds)


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_expiry_time_is_parsed(moment: object) -> None:
    now = ManualClock().now()
    try:
        assert parse_expiry(str(moment), now) == moment
    except InvalidInput:
        assert str(moment) <= str(now)


identities = st.tuples(
    st.sampled_from(("web", "telegram", "matrix", "webhook.x", "telegram.two")), st.text(min_size=1, max_size=300)
).map(":".join)


@given(identities, identities)
def test_two_people_never_share_a_channel(one: str, other: str) -> None:
    channels = [personal_channel(identity) for identity in (one, other)]
    assert (channels[0] == channels[1]) == (one.removeprefix("web:") == other.removeprefix("web:"))
    assert is_personal(make_thread_id("web", channels[0], "x"))
    assert not is_personal(make_thread_id("telegram", channels[0], "x"))


def test_a_token_makes_no_one_the_owner_of_the_page() -> None:
    """On the page, a user's id may be a full identity. On a chat platform, a user with the same id is someone else."""
    for user, platform, identity in (
        ("owner", "web", "web:owner"),
        ("telegram:1", "web", "telegram:1"),
        ("telegram:1", "openai", "telegram:1"),
        ("matrix:@a:example.org", "web", "matrix:@a:example.org"),
        ("web:owner", "telegram", "telegram:web:owner"),
        ("telegram:1", "webhook", "webhook:telegram:1"),
    ):
        assert Asker(trust="trusted", user=user, platform=platform).identity == identity
    for user in ("web:owner", "telegram:1"):
        assert not is_among(Asker(trust="trusted", user=user, platform="web"), ("web:owner", "telegram:1"))


def test_the_owner_is_not_notified_in_another_persons_channel() -> None:
    assert noted_channel("main", ThreadId("web:@ben:x")) == ()
    assert noted_channel("main", ThreadId("web:lobby:x")) != ()
