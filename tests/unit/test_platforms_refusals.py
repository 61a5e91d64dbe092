"""Posts that a platform rejects temporarily are kept, regardless of the error it reports."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import PlatformError
from shoal.kernel.secret import Secret
from shoal.platforms.discord.settings import DiscordSettings
from shoal.platforms.discord.wire import DiscordApi
from shoal.platforms.http import Granted, RestApi
from shoal.platforms.matrix.settings import MatrixSettings
from shoal.platforms.matrix.wire import MatrixApi
from shoal.platforms.slack.settings import SlackSettings
from shoal.platforms.slack.wire import Ok, SlackApi
from shoal.platforms.telegram.settings import TelegramSettings
from shoal.platforms.telegram.wire import TelegramApi
from shoal.store.sqlite import SqliteDriver
from shoal.store.store import Store
from shoal.testing.database import empty_database
from tests.unit.platforms.test_http import answering, at_once

CLOCK = SystemClock()


class Rest(RestApi):
    async def _grant(self) -> Granted:
        return Granted("t", 3600)


async def by_discord(base: str) -> None:
    await DiscordApi(DiscordSettings(token=Secret("value", "t"), api_base=base), CLOCK).call(
        "POST", "/channels/1/messages", Ok
    )


async def by_slack(base: str) -> None:
    await SlackApi(SlackSettings(bot_token=Secret("value", "t"), api_base=base), CLOCK).call("chat.postMessage", Ok, {})


async def by_telegram(base: str) -> None:
    await TelegramApi(TelegramSettings(token=Secret("value", "t"), api_base=base)).call("sendMessage", Ok, {})


async def by_rest(base: str) -> None:
    await Rest("Teams", "", CLOCK).call("POST", base, Ok, {})


HTML = b"<html>Forbidden</html>"
CASES: list[tuple[Callable[[str], Awaitable[None]], int, object]] = [
    *(
        (by_discord, 403, {"code": code, "message": "no"})
        for code in (20016, 20028, 20029, 40002, 40003, 40004, 40006, 40007, 40333, 50013, 50095, 60003, 130000)
    ),
    *(
        (by_slack, 200, {"ok": False, "error": error})
        for error in (
            "rate_limited",
            "missing_scope",
            "access_denied",
            "org_login_required",
            "message_limit_exceeded",
            "enterprise_is_restricted",
            "two_factor_setup_required",
            "user_is_restricted",
            "not_in_channel",
        )
    ),
    *(
        (by_telegram, code, {"ok": False, "error_code": code, "description": words})
        for code, words in (
            (403, "Forbidden: bot was kicked from the supergroup chat"),
            (403, "Forbidden: bot can't initiate conversation with a user"),
            (400, "Bad Request: ALLOW_PAYMENT_REQUIRED"),
            (400, "Bad Request: USER_PRIVACY_RESTRICTED"),
            (400, "Bad Request: PRIVACY_PREMIUM_REQUIRED"),
            (400, "Bad Request: PEER_FLOOD"),
            (420, "FLOOD_WAIT_30"),
            (423, "Locked"),
        )
    ),
    *((by_rest, status, {"error": {"code": status, "message": "no"}}) for status in (403, 408, 409, 423, 425)),
    *((call, status, HTML) for call in (by_discord, by_slack, by_telegram) for status in (403, 404, 408)),
]


@pytest.mark.parametrize(("call", "status", "body"), CASES)
async def test_a_temporary_refusal_of_a_post_is_not_permanent(
    call: Callable[[str], Awaitable[None]], status: int, body: object
) -> None:
    said = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(said)}\r\nconnection: close\r\n\r\n"
    async with answering(at_once(head.encode() + said)) as base:
        with pytest.raises(PlatformError) as refused:
            await call(base)
    assert not refused.value.permanent
    assert not refused.value.outcome_unknown


@pytest.mark.parametrize("seconds", ["inf", "1e300", "nan", "-5", "x"])
async def test_no_discord_header_blocks_a_route_forever(seconds: str) -> None:
    head = f"HTTP/1.1 200 X\r\nx-ratelimit-remaining: 0\r\nx-ratelimit-reset-after: {seconds}\r\n"
    async with answering(at_once(f"{head}content-length: 2\r\nconnection: close\r\n\r\n{{}}".encode())) as base:
        api = DiscordApi(DiscordSettings(token=Secret("value", "t"), api_base=base), CLOCK)
        await api.call("POST", "/channels/1/messages", Ok)
        assert 0 <= api.wait_seconds("POST", "/channels/1/messages") <= 3600
        await api.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((403, {"errcode": code, "error": "no"}) for code in ("M_FORBIDDEN", "M_USER_SUSPENDED", "M_UNKNOWN")),
        (403, {"errcode": "M_RESOURCE_LIMIT_EXCEEDED", "error": "no"}),
        (400, {"errcode": "M_CONSENT_NOT_GIVEN", "error": "no"}),
        (403, HTML),
        (408, HTML),
    ],
)
async def test_a_temporary_refusal_by_a_homeserver_is_not_permanent(tmp_path: Path, status: int, body: object) -> None:
    said = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(said)}\r\nconnection: close\r\n\r\n"
    store = Store(SqliteDriver(empty_database(tmp_path / "shoal.db")), CLOCK)
    async with answering(at_once(head.encode() + said)) as base:
        settings = MatrixSettings(homeserver=base, access_token=Secret("value", "t"))
        with pytest.raises(PlatformError) as refused:
            await MatrixApi(settings, store.settings, "x").call("PUT", "/x", Ok, {})
    await store.close()
    assert (refused.value.permanent, refused.value.outcome_unknown) == (False, False)
