"""Credentials by the clock: how long wrong tokens are counted, how long a cookie is good."""

from starlette.requests import Request

from shoal.surfaces.http.auth import ADDRESSES_MAX, COOKIE_SECONDS, FAILURE_SECONDS, FAILURES_MAX, FailureLimit, Gate
from shoal.surfaces.http.core import WebOptions
from shoal.testing.clock import ManualClock

OPTIONS = WebOptions(token="a-token-that-is-long-enough-to-be-unguessable")


def request(**headers: str) -> Request:
    """A request from the local machine."""
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
    clock.jump(FAILURE_SECONDS)
    assert limit.wait_seconds("a") == 0


def test_the_window_starts_anew_after_it_has_passed() -> None:
    clock = ManualClock()
    limit = FailureLimit(clock)
    for _ in range(FAILURES_MAX - 1):
        limit.add("a")
    clock.jump(FAILURE_SECONDS)
    limit.add("a")
    assert limit.wait_seconds("a") == 0


def test_only_so_many_addresses_are_remembered() -> None:
    limit = FailureLimit(ManualClock())
    for number in range(ADDRESSES_MAX + 10):
        limit.add(str(number))
    assert len(limit._failures) == ADDRESSES_MAX
    assert "0" not in limit._failures


def test_a_cookie_is_good_until_it_expires() -> None:
    clock = ManualClock()
    gate = Gate(OPTIONS, clock)
    cookie = f"shoal_8420={gate.make_cookie()}"
    clock.jump(COOKIE_SECONDS - 1)
    assert gate.has_cookie(request(cookie=cookie))
    clock.jump(1)
    assert not gate.has_cookie(request(cookie=cookie))


def test_a_cookie_whose_time_was_changed_is_no_good() -> None:
    clock = ManualClock()
    gate = Gate(OPTIONS, clock)
    expires, _, signature = gate.make_cookie().partition(".")
    assert not gate.has_cookie(request(cookie=f"shoal_8420={int(expires) + 1}.{signature}"))


def test_a_cookie_of_another_port_is_not_looked_at() -> None:
    gate = Gate(OPTIONS, ManualClock())
    assert not gate.has_cookie(request(cookie=f"shoal_9999={gate.make_cookie()}"))
