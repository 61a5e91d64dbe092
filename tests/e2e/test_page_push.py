"""Notifications in a real browser: what the service worker shows, and how it processes clicks and replies."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Worker, expect
from tests.e2e.http_stand import TOKEN, Served, served
from tests.e2e.page_kit import WITH_NOTIFICATIONS, chromium, launched

from shoal.kernel.events import ApprovalRequested
from shoal.kernel.ids import ApprovalId, CallId, ThreadId
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.records import Commit, NewApproval
from shoal.kernel.secret import Secret
from shoal.kernel.settings import WebSettings

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]

THREAD = ThreadId("web:lobby:a")
SHOWN = """async () => (await self.registration.getNotifications())
  .map(({ title, body, tag, actions }) => ({ title, body, tag, actions: actions.map((one) => one.title) }))"""
PAGES = "self.clients.matchAll({ includeUncontrolled: true }).then((all) => all.length)"
DISPATCH = """
  const done = [];
  event.waitUntil = (work) => done.push(work);
  self.dispatchEvent(event);
  await Promise.all(done);
}"""
PUSH = f"async (data) => {{ const event = new PushEvent('push', {{ data }}); {DISPATCH}"
CLICK = f"""async (action) => {{
  const [notification] = await self.registration.getNotifications();
  const event = new NotificationEvent('notificationclick', {{ notification, action }}); {DISPATCH}"""


class Notified:
    """A signed-in browser and its service worker. Tests deliver push messages to it as a push service would."""

    def __init__(self, stand: Served, context: BrowserContext, page: Page, worker: Worker) -> None:
        self.stand = stand
        self.page = page
        self.worker = worker
        self._context = context

    async def ask(self) -> ApprovalId:
        stand = self.stand
        prompt = Prompt(THREAD, stand.clock.new_id(), "hello", Author("owner", trusted=True), stand.clock.now())
        await stand.orchestrator.send(prompt)
        turn = await stand.open(prompt)
        lease = await stand.store.journal.lease(THREAD)
        assert lease is not None
        asked, expires = ApprovalId(stand.clock.new_id()), stand.clock.now() + timedelta(hours=1)
        actions = ("tool:bash:make",)
        event = ApprovalRequested(asked, CallId("c1"), "bash", actions, "make all", expires)
        approval = NewApproval(asked, CallId("c1"), "bash", actions, "d", "make all", "web:owner", expires)
        await stand.store.journal.commit(lease, Commit(turn, (event,), approvals=(approval,)))
        return asked

    async def leave(self) -> None:
        await self.page.goto("about:blank")
        async with asyncio.timeout(60):
            while await self.worker.evaluate(
                "self.clients.matchAll({ includeUncontrolled: true }).then((all) => all.length)"
            ):
                pass

    async def push(self, **content: str) -> None:
        await self.worker.evaluate(PUSH, json.dumps(content))

    async def shown(self) -> list[dict[str, object]]:
        notifications: list[dict[str, object]] = await self.worker.evaluate(SHOWN)
        return notifications


# Replaces the browser's push interface, because the test browser has no push service.
PUSH_SERVICE = """
let made = null;
// The generator of P-256.
const point = "BGsX0fLhLEJH-Lzm5WOkQPJ3A32BLeszoPShOUXYmMKWT-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU";
const keys = { p256dh: point, auth: "A".repeat(22) };
PushManager.prototype.getSubscription = async () => made;
PushManager.prototype.subscribe = async () => (made = {
  endpoint: "https://push.example.org/a",
  toJSON: () => ({ endpoint: made.endpoint, keys }),
  unsubscribe: async () => ((made = null), true),
});
// The service worker comes late, as it does on a busy machine.
const register = ServiceWorkerContainer.prototype.register;
ServiceWorkerContainer.prototype.register = async function (...given) {
  await new Promise((go) => setTimeout(go, 300));
  return register.apply(this, given);
};
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def notifying() -> AsyncIterator[Browser]:
    async with launched(chromium(WITH_NOTIFICATIONS)) as chromium_browser:
        yield chromium_browser


@pytest_asyncio.fixture(loop_scope="session")
async def notified(notifying: Browser, tmp_path: Path) -> AsyncIterator[Notified]:
    async with served(tmp_path, web=WebSettings(token=Secret("value", TOKEN))) as stand:
        context = await notifying.new_context()
        await context.grant_permissions(["notifications"], origin=stand.address)
        await context.add_init_script(PUSH_SERVICE)
        page = await context.new_page()
        async with context.expect_event("serviceworker") as coming:
            await page.goto(f"{stand.address}/?token={TOKEN}")
        await page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        yield Notified(stand, context, page, await coming.value)
        await context.close()


@pytest.mark.parametrize(("action", "state"), [("allow", "allow"), ("deny", "deny")])
async def test_a_request_is_answered_on_its_notification(notified: Notified, action: str, state: str) -> None:
    asked = await notified.ask()
    await notified.leave()
    await notified.push(kind="approval", title="May bash run this?", text="make all", thread=THREAD, approval=asked)
    (note,) = await notified.shown()
    assert note == {
        "title": "May bash run this?", "body": "make all", "tag": asked, "actions": ["Allow once", "Deny"],
    }  # fmt: skip
    await notified.worker.evaluate(CLICK, action)
    assert await notified.shown() == []
    approval = await notified.stand.store.approvals.get(asked)
    assert approval is not None
    assert (approval.state, approval.scope) == (state, "once")


async def test_a_late_answer_is_reported(notified: Notified) -> None:
    asked = await notified.ask()
    await notified.leave()
    await notified.push(kind="approval", title="May bash run this?", text="make", thread=THREAD, approval=asked)
    await notified.stand.client.post(f"/api/approvals/{asked}", json={"decision": "deny"})
    await notified.worker.evaluate(CLICK, "allow")
    (note,) = await notified.shown()
    assert note["title"] == "Could not save your decision: May bash run this?"
    assert note["actions"] == []


async def test_no_notification_is_shown_while_the_page_is_visible(notified: Notified) -> None:
    await notified.push(kind="answer", title="Boats", text="first", thread=THREAD, approval="")
    await notified.leave()
    await notified.push(kind="answer", title="Boats", text="second", thread=THREAD, approval="")
    assert [note["body"] for note in await notified.shown()] == ["second"]


async def test_a_person_subscribes_and_unsubscribes_a_browser(notified: Notified) -> None:
    page = notified.page
    await page.get_by_role("button", name="Turn on notifications").click()
    await expect(page.get_by_role("button", name="Turn off notifications")).to_be_visible()
    ((_, subscription),) = await notified.stand.store.settings.page("push")
    assert json.loads(subscription)["endpoint"] == "https://push.example.org/a"
    assert json.loads(subscription)["origin"] == notified.stand.address
    await page.get_by_role("button", name="Turn off notifications").click()
    await expect(page.get_by_role("button", name="Turn on notifications")).to_be_visible()
    assert await notified.stand.store.settings.page("push") == []
