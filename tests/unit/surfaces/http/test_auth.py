"""Time limits for credentials: the window for counting wrong tokens, and the lifetime of a cookie."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import Request

from shoal.permissions.access import AccessRules, Links
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.surfaces.http.auth import ADDRESSES_MAX, COOKIE_SECONDS, FAILURE_SECONDS, FAILURES_MAX, FailureLimit, Gate
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.table import is_file
from shoal.testing.clock import ManualClock
from shoal.threads.access_tokens import AccessTokens, NewToken
from shoal.threads.pairing import Pairing
from shoal.threads.principals import OWNER, OWNER_ON_PAGE

OPTIONS = WebOptions(token="a-token-that-is-long-enough-to-be-unguessable")


def request(**headers: str) -> Request:
    sent = [(b"host", b"localhost:8420"), *((name.encode(), value.encode()) for name, value in headers.items())]
    return Request({"type": "http", "method": "GET", "headers": sent, "client": ("127.0.0.1", 5), "path": "/"})


def test_an_address_waits_after_too_many_failures_and_no_longer_than_the_window() -> None:
    clock = ManualClock()
    limit = FailureLimit(clock)
    for _ in range(FAILURES_MAX):
        assert limit.wait_seconds("a") == 0
        limit.add("a")
    assert limit.wait_seconds("a") == FAILURE_SECONDS
    assert limit.wait_seconds("b") == 0
    clock.skip(FAILURE_SECONDS)
    assert limit.wait_seconds("a") == 0


def test_the_window_restarts_after_it_has_passed() -> None:
    clock = ManualClock()
    limit = FailureLimit(clock)
    for _ in range(FAILURES_MAX - 1):
        limit.add("a")
    clock.skip(FAILURE_SECONDS)
    limit.add("a")
    assert limit.wait_seconds("a") == 0


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    limit = FailureLimit(ManualClock())
    for _ in range(FAILURES_MAX):
        limit.add("0")
    for number in range(1, ADDRESSES_MAX):
        limit.add(str(number))
    assert limit.wait_seconds("0") > 0
    limit.add("one more")
    assert limit.wait_seconds("0") == 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(tmp_path: Path, clock: ManualClock) -> AsyncIterator[AccessTokens]:
    store = Store(SqliteDriver(tmp_path / "shoal.db"), clock)
    rules = Links(rules={"web": AccessRules(("owner",))})
    yield AccessTokens(store, clock, Pairing(store, clock), rules, lambda: ("main",))
    await store.close()


async def test_a_cookie_is_valid_until_it_expires(clock: ManualClock, tokens: AccessTokens) -> None:
    gate = Gate(OPTIONS, clock, tokens, is_file)
    cookie = f"shoal_8420={gate.make_cookie(OWNER)}"
    clock.skip(COOKIE_SECONDS - 1)
    assert await gate.visitor(request(cookie=cookie)) is OWNER_ON_PAGE
    clock.skip(1)
    assert await gate.visitor(request(cookie=cookie)) is None


async def test_a_cookie_with_a_changed_time_is_invalid(clock: ManualClock, tokens: AccessTokens) -> None:
    gate = Gate(OPTIONS, clock, tokens, is_file)
    expires, _, signature = gate.make_cookie(OWNER).partition(".")
    assert await gate.visitor(request(cookie=f"shoal_8420={int(expires) + 1}.{signature}")) is None


async def test_a_cookie_of_another_port_is_ignored(clock: ManualClock, tokens: AccessTokens) -> None:
    gate = Gate(OPTIONS, clock, tokens, is_file)
    assert await gate.visitor(request(cookie=f"shoal_9999={gate.make_cookie(OWNER)}")) is None


async def test_a_cookie_names_one_token_and_no_other(clock: ManualClock, tokens: AccessTokens) -> None:
    gate = Gate(OPTIONS, clock, tokens, is_file)
    token, secret = await tokens.create(NewToken("ben", "chat"), "web:owner")
    await tokens.create(NewToken("root", "admin"), "web:owner")
    ben = await gate.bearer(request(), secret)
    expires, signature, name = gate.make_cookie(ben).split(".")
    assert name == "ben"
    owners = gate.make_cookie(OWNER).split(".")[1]
    for value in (
        f"{expires}.{signature}.root",
        f"{expires}.{signature}",
        f"{expires}.{owners}.ben",
        f"{expires}.{owners}.root",
        f"{expires}.{signature}.",
        f"{expires}.{signature}.ben.",
        f"{expires}.{signature}.BEN",
    ):
        assert await gate.visitor(request(cookie=f"shoal_8420={value}")) is None, value
    found = await gate.visitor(request(cookie=f"shoal_8420={expires}.{signature}.ben"))
    assert found is not None
    assert (found.token.digest, found.by_cookie) == (token.digest, True)


async def test_a_cookie_ends_with_its_token(clock: ManualClock, tokens: AccessTokens) -> None:
    gate = Gate(OPTIONS, clock, tokens, is_file)
    _, secret = await tokens.create(NewToken("ben", "chat", expires="1h"), "web:owner")
    cookie = f"shoal_8420={gate.make_cookie(await gate.bearer(request(), secret))}"
    clock.skip(3599)
    assert await gate.visitor(request(cookie=cookie)) is not None
    clock.skip(1)
    assert await gate.visitor(request(cookie=cookie)) is None
    with pytest.raises(ApiError, match="has expired"):
        await gate.bearer(request(), secret)
