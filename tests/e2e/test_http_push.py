"""Push notifications: each browser receives only what its user may read, and nothing after its subscription or
token was revoked.
"""

import asyncio
import base64
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from tests.e2e.http_stand import TOKEN, Served, served

from shoal.features.push.service import Notification, WebPush, notification
from shoal.kernel.events import ApprovalRequested, Event
from shoal.kernel.ids import ApprovalId, CallId, CardId, ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.permissions import CardItem
from shoal.kernel.records import Commit
from shoal.kernel.secret import Secret
from shoal.kernel.settings import WebSettings
from shoal.testing.push import FakePush, Pushed

pytest.importorskip("http_ece", reason="needs the extra `push`")

OFF_CURVE = base64.urlsafe_b64encode(b"\x04" + bytes(64)).rstrip(b"=").decode()
"""A public key whose point is not on the curve."""
LOBBY, OWN, FOREIGN = ThreadId("web:lobby:a"), ThreadId("web:@ben:mine"), ThreadId("telegram:1:2")


class Told:
    """A stand that sends notifications to a fake push service."""

    def __init__(self, stand: Served, service: FakePush) -> None:
        self.stand = stand
        self.service = service

    async def browser(self, name: str, token: str = TOKEN) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return await self.stand.stranger.put("/api/push", json=self.service.browser(name), headers=headers)

    async def token(self, name: str, scope: str, agent: str = "", expires: str = "") -> str:
        wanted = {"name": name, "scope": scope, "agent": agent, "expires": expires}
        answer = await self.stand.client.post("/api/tokens", json=wanted)
        return str(answer.json()["secret"])

    async def answered(self, thread: ThreadId, *pieces: str) -> list[Pushed]:
        return await self._came(self.turn(thread, *pieces))

    async def asked(self, thread: ThreadId, expires_seconds: float = 600) -> list[Pushed]:
        return await self._came(self._ask(thread, expires_seconds))

    async def _ask(self, thread: ThreadId, expires_seconds: float) -> None:
        turn = await self.stand.open(await self._prompt(thread))
        expires = self.stand.clock.now() + timedelta(seconds=expires_seconds)
        asked = ApprovalId(self.stand.clock.new_id())
        lease = await self.stand.store.journal.lease(thread)
        assert lease is not None
        event = ApprovalRequested(asked, CallId("c1"), "bash", ("tool:bash:make",), "make all", expires)
        self.stand.hub.publish((await self.stand.store.journal.commit(lease, Commit(turn, (event,)))).events)
        await self.stand.finish(thread, turn, "")

    async def _came(self, work: object) -> list[Pushed]:
        """Return the notifications that arrive while `work` runs. A final marker, sent to the owner's browser,
        shows that all have arrived.
        """
        assert asyncio.iscoroutine(work)
        await work
        await self.turn(ThreadId("web:lobby:mark"), "mark")
        await self.service.until("mark")
        notifications = [
            notification for notification in self.service.received if notification.content["text"] != "mark"
        ]
        self.service.received.clear()
        return notifications

    async def turn(self, thread: ThreadId, *pieces: str) -> None:
        await self.stand.answer(await self._prompt(thread), *pieces)

    async def _prompt(self, thread: ThreadId) -> Prompt:
        clock = self.stand.clock
        prompt = Prompt(thread, clock.new_id(), "hello", Author("owner", trusted=True), clock.now())
        await self.stand.orchestrator.send(prompt)
        return prompt


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    service = FakePush()
    await service.start()
    web = WebSettings(token=Secret("value", TOKEN), push_services=(service.server.address,))
    async with served(tmp_path / "home", web=web) as stand, asyncio.TaskGroup() as tasks:
        notified = Told(stand, service)
        service.application_key = (await stand.client.get("/api/push")).json()["key"]
        assert (await notified.browser("mark")).status_code == 200
        telling = tasks.create_task(stand.services[WebPush].run())
        await asyncio.sleep(0)
        yield notified
        telling.cancel()
    await service.stop()


async def test_the_owner_is_notified_of_answers_and_approvals(told: Told) -> None:
    (answer,) = await told.answered(LOBBY, "The boat is ", "painted.")
    assert (answer.content["kind"], answer.content["text"]) == ("answer", "The boat is painted.")
    assert answer.content["thread"] == LOBBY
    (request,) = await told.asked(FOREIGN)
    assert (request.content["kind"], request.content["text"]) == ("approval", "make all")
    assert request.content["title"] == "main asks to run bash"
    assert request.content["approval"]
    assert 500 < request.ttl_seconds <= 600
    assert request.urgency == "high"


async def test_a_card_of_several_calls_causes_one_notification(told: Told) -> None:
    expires = told.stand.clock.now() + timedelta(minutes=10)

    def asked(number: int, *, staged: bool = False) -> Notification | None:
        item = CardItem(CardId("CARD"), number, 3, staged=staged)
        actions, asked = ("tool:bash:make",), ApprovalId(f"A{number}")
        data = ApprovalRequested(asked, CallId(f"c{number}"), "bash", actions, f"make {number}", expires, item=item)
        return notification(Event(number, LOBBY, TurnId("T"), expires, data), "Harbour", "main")

    first = asked(1)
    assert first is not None
    assert (first.kind, first.title, first.text) == ("approval", "main asks to make 3 calls", "make 1")
    assert (first.thread, first.approval, first.is_cut) == (
        LOBBY,
        "CARD",
        True,
    )  # an incomplete text cannot be allowed from the notification
    staged = asked(1, staged=True)
    assert staged is not None
    assert staged.title == "main asks to do 3 things"
    assert [asked(2), asked(3, staged=True)] == [None, None]


async def test_answers_on_other_platforms_cause_no_notification(told: Told) -> None:
    assert await told.answered(FOREIGN, "Said on Telegram.") == []
    assert await told.answered(LOBBY, "[SILENT]") == []


async def test_notifications_respect_read_access(told: Told) -> None:
    chat = await told.token("ben", "chat")
    for name, secret in (
        ("ben", chat),
        ("reader", await told.token("reader", "read")),
        ("other", await told.token("other", "chat")),
    ):
        assert (await told.browser(name, secret)).status_code == 200
    assert [notification.browser for notification in await told.answered(OWN, "Yours.")] == ["ben"]
    assert [notification.browser for notification in await told.answered(LOBBY, "The owner's.")] == ["mark"]
    assert [notification.browser for notification in await told.asked(OWN)] == ["mark"]


async def test_an_unsubscribed_browser_is_removed(told: Told) -> None:
    assert (await told.browser("second")).status_code == 200
    told.service.gone.add("second")
    assert [notification.browser for notification in await told.answered(LOBBY, "one")] == ["mark"]
    told.service.gone.clear()
    assert [notification.browser for notification in await told.answered(LOBBY, "two")] == ["mark"]


async def test_a_revoked_token_removes_its_browsers_even_if_the_name_is_reused(told: Told) -> None:
    await told.browser("ben", await told.token("ben", "chat"))
    assert len(await told.answered(OWN, "one")) == 1
    await told.stand.client.delete("/api/tokens/ben")
    await told.token("ben", "chat")
    assert await told.answered(OWN, "two") == []


async def test_a_clock_error_does_not_remove_browsers(told: Told) -> None:
    await told.browser("ben", await told.token("ben", "chat", expires="1d"))
    told.stand.clock.ahead = timedelta(days=40)
    assert await told.answered(OWN, "one") == []
    told.stand.clock.ahead = timedelta()
    assert [notification.browser for notification in await told.answered(OWN, "two")] == ["ben"]


async def test_a_browser_ends_only_its_own_subscription(told: Told) -> None:
    chat = await told.token("ben", "chat")
    mark = f"{told.service.server.address}/send/mark"
    refused = await told.stand.stranger.delete(
        "/api/push", params={"endpoint": mark}, headers={"Authorization": f"Bearer {chat}"}
    )
    assert refused.status_code == 404
    await told.browser("second")
    second = {"endpoint": f"{told.service.server.address}/send/second"}
    assert (await told.stand.client.delete("/api/push", params=second)).json() == {"removed": True}
    assert [notification.browser for notification in await told.answered(LOBBY, "one")] == ["mark"]


async def test_urls_other_than_public_push_services_are_rejected(told: Told) -> None:
    good = told.service.browser("x")
    for wrong in (
        {**good, "endpoint": "http://push.example.org/x"},
        {**good, "endpoint": "file:///etc/passwd"},
        {**good, "p256dh": "AAAA"},
        {**good, "p256dh": OFF_CURVE},
        {**good, "auth": "not base64!"},
    ):
        assert (await told.stand.client.put("/api/push", json=wrong)).status_code == 400
    inside = {**good, "endpoint": "https://127.0.0.1:1/x"}
    assert (await told.stand.client.put("/api/push", json=inside)).status_code == 200
    assert len(await told.answered(LOBBY, "one")) == 1


async def test_a_failing_browser_does_not_affect_others(told: Told) -> None:
    subscriptions = dict(await told.stand.store.settings.page("push"))
    (row,) = subscriptions.values()
    bad = json.loads(row) | {"endpoint": f"{told.service.server.address}/send/bad", "p256dh": OFF_CURVE}
    await told.stand.store.settings.put("push", "bad", json.dumps(bad))
    await told.stand.store.settings.put("push", "newer", '{"device": 7}')
    assert [notification.browser for notification in await told.answered(LOBBY, "one")] == ["mark"]


class Heard(logging.Handler):
    """Log handler that signals when a notification could not be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "sending notification failed":
            self.event.set()


def garbled(path: Path) -> None:
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\n\xff\n-----END PRIVATE KEY-----\n")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("odd", [garbled, folder, pipe])
@pytest.mark.timeout(60)
async def test_an_unusable_key_ends_no_subscription(
    told: Told, odd: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.features.push.service")
    heard, file = Heard(), told.stand.home.secrets / "push"
    logging.getLogger("shoal.features.push.service").addHandler(heard)
    before = file.read_bytes()
    odd(file)
    await told.turn(LOBBY, "one")
    await heard.event.wait()
    logging.getLogger("shoal.features.push.service").removeHandler(heard)
    assert (await told.stand.client.get("/api/push")).status_code == 400
    file.rmdir() if file.is_dir() else file.unlink()
    file.write_bytes(before)
    assert [notification.content["text"] for notification in await told.answered(LOBBY, "two")] == ["two"]


async def test_the_key_is_a_secret_of_the_home(told: Told) -> None:
    file = told.stand.home.secrets / "push"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")


async def test_notifications_can_be_switched_off(tmp_path: Path) -> None:
    async with served(tmp_path, web=WebSettings(push=False)) as stand:
        answer = (await stand.client.get("/api/push")).json()
        assert answer == {
            "on": False,
            "why_off": ("Notifications are off. Set web.push = true to turn them on."),
            "key": "",
        }
        keys = {"endpoint": "https://push.example.org/x", "p256dh": "AA", "auth": "AA"}
        assert (await stand.client.put("/api/push", json=keys)).status_code == 400
