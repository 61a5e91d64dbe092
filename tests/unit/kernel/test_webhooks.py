"""Repeated webhook calls are recognized even if their unsigned parts change."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.ports import ONCE
from shoal.kernel.webhooks import (
    AGE_SECONDS_MAX,
    FOR_EVER,
    REPEATED_SECONDS,
    Delivery,
    Proof,
    first_delivery,
    proof,
    proofs,
    signature,
)
from shoal.testing.contracts.chat_peer import MemorySettings

SECRET = "0123456789abcdef-secret"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
DAY = 86_400.0
FORGOTTEN_SECONDS = REPEATED_SECONDS + DAY
"""The earliest time at which the store forgets a message."""
REPEAT_SECONDS = 3600.0

Headers = Mapping[str, str]
Replay = tuple[float, tuple[str, ...], dict[str, str], str, bool]


def call(kinds: frozenset[str], body: bytes, at: datetime) -> dict[str, str]:
    made = {
        "timed": ("X-Shoal-Signature", proof(SECRET, body, at)),
        "signed": ("X-Hub-Signature-256", f"sha256={signature(SECRET, body)}"),
        "bearer": ("Authorization", f"Bearer {SECRET}"),
    }
    return dict(made[kind] for kind in kinds)


class Receiver:
    """A webhook endpoint with a store that remembers the keys of accepted calls."""

    def __init__(self) -> None:
        self.settings = MemorySettings()
        self.taken: dict[tuple[str, str], datetime] = {}

    async def receives(self, headers: Headers, body: bytes, now: datetime, place: str = "hook:ci") -> str:
        for key, at in list(self.taken.items()):
            if (now - at).total_seconds() > FORGOTTEN_SECONDS:
                del self.taken[key]
        for (scope, key), value in list(self.settings.values.items()):
            at = datetime.fromtimestamp(int(value[:16]) / 1e6, UTC)
            if scope == ONCE and (now - at).total_seconds() > FORGOTTEN_SECONDS:
                del self.settings.values[scope, key]
        proved = proofs({name.lower(): value for name, value in headers.items()}, body, SECRET, now)
        if not proved:
            return "refused"
        found = await first_delivery(self.settings, proved, place, now, REPEAT_SECONDS)
        if found is None or (place, found.key) in self.taken:
            return "known"
        self.taken[place, found.key] = now
        return "new"


UNSIGNED: tuple[str, ...] = (
    "Idempotency-Key",
    "X-GitHub-Delivery",
    "X-Request-Id",
    "Webhook-Id",
    "X-Shoal-Delivery",
    "Content-Type",
)


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    """Draw a replay: its delay in seconds, removed signatures, added headers, endpoint, and upper-case header names."""
    later = draw(st.floats(0, 120 * DAY) | st.floats(0, 2 * AGE_SECONDS_MAX) | st.just(FORGOTTEN_SECONDS + 1))
    without = draw(st.lists(st.sampled_from(["X-Shoal-Signature", "X-Hub-Signature-256"]), unique=True))
    added = draw(st.dictionaries(st.sampled_from(UNSIGNED), st.text(max_size=8), max_size=3))
    return later, tuple(without), added, draw(st.sampled_from(["hook:ci", "hook:other"])), draw(st.booleans())


@given(
    st.sampled_from([{"timed"}, {"signed"}, {"timed", "signed"}]),
    st.binary(max_size=60),
    st.lists(replays(), min_size=1, max_size=12),
)
def test_changing_unsigned_parts_does_not_make_a_captured_call_new(
    kinds: set[str], body: bytes, tries: list[Replay]
) -> None:
    async def attempt() -> None:
        receiver, captured = Receiver(), call(frozenset(kinds), body, START)
        assert await receiver.receives(captured, body, START) == "new"
        for later, without, added, place, upper in sorted(tries, key=lambda one: one[0]):
            headers = {name: value for name, value in captured.items() if name not in without} | added
            headers = {name.upper() if upper else name: value for name, value in headers.items()}
            told = await receiver.receives(headers, body, START + timedelta(seconds=later), place)
            assert told != "new", (later, without, added, place)

    asyncio.run(attempt())


async def test_a_timed_signature_does_not_sign_a_body_that_starts_with_the_time() -> None:
    """Both headers use the same secret, so an attacker could send a signature under the other header."""
    receiver, captured = Receiver(), call(frozenset({"timed"}), b"{}", START)
    time, _, mac = captured["X-Shoal-Signature"].removeprefix("t=").partition(",v1=")
    assert await receiver.receives(captured, b"{}", START) == "new"
    moved = {"X-Hub-Signature-256": f"sha256={mac}"}
    for days in (0, 1, 400):
        told = await receiver.receives(moved, f"{time}.{{}}".encode(), START + timedelta(days=days))
        assert told == "refused"


async def test_a_body_signature_does_not_sign_a_time_at_the_start_of_the_body() -> None:
    receiver, body = Receiver(), f"{int(START.timestamp())}.{{}}".encode()
    captured = call(frozenset({"signed"}), body, START)
    mac = captured["X-Hub-Signature-256"].removeprefix("sha256=")
    assert await receiver.receives(captured, body, START) == "refused"
    moved = {"X-Shoal-Signature": f"t={int(START.timestamp())},v1={mac}"}
    assert await receiver.receives(moved, b"{}", START) == "new", "and so it is the only one"


async def test_a_repeated_timed_call_is_known_until_it_is_stale() -> None:
    receiver, captured = Receiver(), call(frozenset({"timed"}), b"{}", START)
    assert [await receiver.receives(captured, b"{}", START + timedelta(seconds=late)) for late in (0, 300, 301)] == [
        "new", "known", "refused",
    ]  # fmt: skip


async def test_the_same_body_signed_at_another_time_is_a_new_call() -> None:
    receiver = Receiver()
    for seconds in (0, 1, DAY):
        at = START + timedelta(seconds=seconds)
        assert await receiver.receives(call(frozenset({"timed", "signed"}), b"{}", at), b"{}", at) == "new"


async def test_an_untimed_signed_body_is_remembered_permanently() -> None:
    receiver, captured = Receiver(), call(frozenset({"signed"}), b"{}", START)
    for days in (0, 1, 6, 9, 31, 4000):
        told = await receiver.receives(captured, b"{}", START + timedelta(days=days))
        assert told == ("known" if days else "new")


async def test_a_repeated_body_under_a_bearer_secret_is_accepted_again_later() -> None:
    receiver, captured = Receiver(), call(frozenset({"bearer"}), b"{}", START)
    times = (0.0, REPEAT_SECONDS - 1, REPEAT_SECONDS, REPEAT_SECONDS + 1, 2 * REPEAT_SECONDS)
    told = [await receiver.receives(captured, b"{}", START + timedelta(seconds=seconds)) for seconds in times]
    assert told == ["new", "known", "new", "known", "new"]
    assert await receiver.receives(captured, b"{ }", START + timedelta(seconds=times[-1])) == "new"


async def test_a_call_counts_once_across_endpoints_with_the_same_secret() -> None:
    receiver, captured = Receiver(), call(frozenset({"timed"}), b"{}", START)
    assert await receiver.receives(captured, b"{}", START, "hook:ci") == "new"
    assert await receiver.receives(captured, b"{}", START, "platform:ticker") == "known"
    assert await receiver.receives(captured, b"{}", START, "hook:ci") == "known"


async def test_two_endpoints_with_one_bearer_secret_each_accept_the_same_body() -> None:
    """Anyone who has the secret can make any call, and legitimate programs send the same body to two endpoints."""
    receiver, headers = Receiver(), call(frozenset({"bearer"}), b"{}", START)
    for place, expected in (("hook:ci", "new"), ("hook:room", "new"), ("hook:ci", "known"), ("hook:room", "known")):
        assert await receiver.receives(headers, b"{}", START, place) == expected


async def test_a_bearer_call_taken_by_a_fast_clock_can_repeat_after_the_correction() -> None:
    receiver, headers = Receiver(), call(frozenset({"bearer"}), b"{}", START)
    ahead = timedelta(days=40)
    assert await receiver.receives(headers, b"{}", START + ahead) == "new"
    assert await receiver.receives(headers, b"{}", START + ahead - timedelta(minutes=59)) == "known"
    assert await receiver.receives(headers, b"{}", START) == "new"
    assert await receiver.receives(headers, b"{}", START) == "known"


async def test_an_interrupted_call_keeps_its_key_for_a_week() -> None:
    """A sender calls again if it got no response or "queue full". The message must still be accepted."""
    settings = MemorySettings()
    proved = (Proof("signed", "ab" * 32),)
    first = await first_delivery(settings, proved, "hook:ci", START)
    again = await first_delivery(settings, proved, "hook:ci", START + timedelta(seconds=REPEATED_SECONDS - 1))
    assert first == again == Delivery("ab" * 32, "hook:ci", START)
    assert await first_delivery(settings, proved, "hook:ci", START + timedelta(seconds=REPEATED_SECONDS)) is None


@pytest.mark.parametrize(("kind", "scope"), [("timed", ONCE), ("signed", FOR_EVER), ("bearer", FOR_EVER)])
async def test_the_replay_key_is_stored_with_its_expiry_scope(kind: str, scope: str) -> None:
    settings = MemorySettings()
    proved = proofs(
        {name.lower(): value for name, value in call(frozenset({kind}), b"", START).items()}, b"", SECRET, START
    )
    await first_delivery(settings, proved, "hook:a b", START)
    ((kept, _), value), = settings.values.items()  # fmt: skip
    assert (kept, value[:16]) == (scope, str(int(START.timestamp() * 1e6)))


async def test_only_one_of_two_workers_accepts_the_same_call() -> None:
    class Slow(MemorySettings):
        async def get(self, scope: str, key: str) -> str | None:
            found = await super().get(scope, key)
            await asyncio.sleep(0)
            return found

    settings = Slow()
    proved = (Proof("signed", "ab" * 32),)
    times = [START + timedelta(microseconds=number) for number in range(5)]
    found = await asyncio.gather(*(first_delivery(settings, proved, "hook:ci", at) for at in times))
    assert len({one.key for one in found if one is not None}) == 1
