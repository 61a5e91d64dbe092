"""A fake Slack workspace, on loopback. Source: docs.slack.dev."""

import hashlib
import hmac
from collections import deque
from urllib.parse import urlencode

import msgspec

from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.slack_markup import shown_text
from shoal.testing.platforms.slack_methods import APP, BOT, BOT_ID, STARTED_AT, TEAM, Workspace
from shoal.testing.platforms.slack_socket import SocketSide
from shoal.testing.platforms.slack_wire import Room, Sent, parameters_of, refused, text_in
from shoal.testing.platforms.wire import Answered, Called, Given, Json, form_of, ok

BOT_TOKEN = "xoxb-fake-for-tests-only"
APP_TOKEN = "xapp-fake-for-tests-only"
SIGNING_SECRET = "fake-signing-secret"

POSTS = frozenset(
    {"chat.postMessage", "chat.update", "chat.delete", "chat.startStream", "files.completeUploadExternal"}
)
"""Methods that are affected by the faults in `troubles`."""
EMOJI = {"❌": "x", "🛑": "octagonal_sign", "👍": "+1", "👎": "-1", "✅": "white_check_mark"}


class FakeSlack(FakePlatform, Workspace):
    """A fake Slack workspace with one app. It rejects invalid calls with Slack's error codes.

    Add people with `add_user` and channels with `add_room`. Use `says` and `clicks` to act as a person. `messages`
    lists all messages, oldest first, and `said` returns the bot's messages in a channel.

    Events are sent through Socket Mode. If `deliver` is set, they are sent as signed calls instead. Unconfirmed
    events are sent again.
    """

    def __init__(self, started_at: float = STARTED_AT) -> None:
        FakePlatform.__init__(self)
        Workspace.__init__(self, started_at)
        self.socket = SocketSide(self.tell)
        self.calls: list[tuple[str, Given]] = []
        self.answers: list[Given] = []
        self._unconfirmed: deque[tuple[Given, int]] = deque()
        self._calling: list[tuple[Given, int]] = []
        for user, name in ((BOT, "Shoal"), ("UADA", "Ada"), ("UBEA", "Bea"), ("USTRANGER", "Mallory")):
            self.add_user(user, name, is_bot=user == BOT)
        self.add_user("UOTHERBOT", "Alerts", is_bot=True)

    async def start(self) -> None:
        await super().start()
        self.address = self.server.address
        await self.socket.start()

    async def stop(self) -> None:
        await super().stop()
        await self.socket.stop()

    def drop(self) -> None:
        super().drop()
        self.socket.drop()

    # ---- people ----

    def add_user(self, user: str, name: str, *, is_bot: bool = False, **more: Json) -> None:
        self.users[user] = {
            "id": user, "name": name.lower(), "real_name": name, "is_bot": is_bot,
            "profile": {"display_name": name, "real_name": name}, **more,
        }  # fmt: skip

    def add_room(self, room: Room) -> None:
        self.rooms[room.id] = room

    async def says(
        self, channel: str, text: str, *, user: str = "UADA", thread_ts: str = "", files: tuple[str, ...] = (),
        more: Given | None = None,
    ) -> str:  # fmt: skip
        is_bot = bool(self.users[user]["is_bot"])
        bot_id = BOT_ID if user == BOT else "BOTHER" if is_bot else ""
        sent = Sent(self.stamp(), channel, user, text, thread_ts, file_ids=files, bot_id=bot_id, more=more or {})
        self.keep(sent)
        event = {**self.about(sent), "channel": channel, "channel_type": self.rooms[channel].kind, "event_ts": sent.ts}
        if files:
            event |= {"subtype": "file_share", "upload": True}
        await self.happens(event)
        if f"<@{BOT}>" in text and self.rooms[channel].kind != "im":
            await self.happens({**event, "type": "app_mention", "subtype": ""})
        return sent.ts

    async def sends_file(
        self, channel: str, name: str, content: bytes, *, text: str = "", thread_ts: str = "", user: str = "UADA",
        uploaded_by: str = "",
    ) -> str:  # fmt: skip
        """Send a file as a person.

        With `uploaded_by`, share a file that another person uploaded. That person remains the file's `user`.

        Source: docs.slack.dev/reference/objects/file-object.
        """
        file = self.new_file(name, len(content), uploaded_by or user)
        self.contents[file] = content
        return await self.says(channel, text, user=user, thread_ts=thread_ts, files=(file,))

    async def changes(self, ts: str, text: str) -> None:
        sent = self.message(ts)
        before = self.about(sent)
        sent.text = text
        after: Given = {**self.about(sent), "edited": {"user": sent.user, "ts": self.stamp()}}
        await self._about("message_changed", sent, {"message": after, "previous_message": before})

    async def deletes(self, ts: str) -> None:
        """Delete a message as its author. A message with replies leaves a tombstone."""
        sent = self.message(ts)
        before = self.about(sent)
        if any(message.thread_ts == ts for message in self.messages):
            after: Given = {**before, "subtype": "tombstone", "text": "This message was deleted.", "user": "USLACKBOT"}
            await self._about("message_changed", sent, {"message": after, "previous_message": before})
        else:
            self.messages.remove(sent)
            self.deleted.add((sent.channel, ts))
            await self._about("message_deleted", sent, {"deleted_ts": ts, "previous_message": before})

    async def reacts(self, ts: str, emoji: str, *, user: str = "UADA") -> None:
        """React to a message as a person. Slack reports an emoji by its name."""
        sent = self.message(ts)
        item: Given = {"type": "message", "channel": sent.channel, "ts": ts}
        name = EMOJI.get(emoji, emoji)
        await self.happens({"type": "reaction_added", "user": user, "reaction": name, "item": item})

    async def adds(self, channel: str, *, user: str = "UADA") -> None:
        await self.happens(
            {"type": "member_joined_channel", "user": BOT, "channel": channel, "channel_type": "C", "inviter": user}
        )

    async def clicks(self, ts: str, label: str, *, user: str = "UADA") -> None:
        sent = self.message(ts)
        value = dict(sent.buttons)[label]
        action: Given = {"type": "button", "action_id": "choice-0", "value": value, "action_ts": self.stamp()}
        await self._interacts(
            "interactive",
            {
                "type": "block_actions", "user": {"id": user, "username": user.lower(), "team_id": TEAM},
                "team": {"id": TEAM}, "channel": {"id": sent.channel}, "message": self.about(sent),
                "actions": [action], "response_url": self._response_url(), "trigger_id": self.stamp(),
            },
        )  # fmt: skip

    async def slashes(self, channel: str, command: str, text: str = "", *, user: str = "UADA") -> None:
        """Run a slash command as a person. Slack does not report the thread."""
        await self._interacts(
            "slash_commands",
            {
                "command": command, "text": text, "user_id": user, "user_name": user.lower(), "channel_id": channel,
                "team_id": TEAM, "api_app_id": APP, "response_url": self._response_url(), "trigger_id": self.stamp(),
            },
        )  # fmt: skip

    def forget(self) -> None:
        """Drop the unconfirmed events, as Slack does after its third attempt."""
        self.socket.pending.clear()
        self._unconfirmed.clear()

    async def opens_home(self, user: str, tab: str = "home") -> None:
        await self.happens({"type": "app_home_opened", "user": user, "channel": "D00000001", "tab": tab})

    def message(self, ts: str) -> Sent:
        return next(message for message in self.messages if message.ts == ts)

    def said(self, channel: str) -> list[Sent]:
        return [message for message in self.messages if message.channel == channel and message.user == BOT]

    def shown(self, message: Sent) -> str:
        return message.source if message.streamed and not message.edits else shown_text(message.source)

    async def sees(self, channel: str, part: str) -> Sent:
        return await self.seen(
            lambda: [message for message in self.said(channel) if not message.streaming], part, self.shown
        )

    async def called(self, method: str) -> Given:
        """Wait until the bot has called a method, and return the parameters of its last call."""
        await self.until(lambda: any(name == method for name, _ in self.calls))
        return next(given for name, given in reversed(self.calls) if name == method)

    # ---- events ----

    async def _about(self, subtype: str, sent: Sent, more: Given) -> None:
        await self.happens({"type": "message", "subtype": subtype, "channel": sent.channel, "ts": self.stamp(), **more})

    async def happens(self, event: Given) -> None:
        authorization: Given = {"team_id": TEAM, "user_id": BOT, "is_bot": True, "is_enterprise_install": False}
        call: Given = {
            "type": "event_callback", "token": "unused", "team_id": TEAM, "api_app_id": APP, "event": event,
            "event_id": f"Ev{self.fresh():08d}", "event_time": 0, "authorizations": [authorization],
        }  # fmt: skip
        await self.happen(lambda: self._deliver(call))

    async def _deliver(self, call: Given) -> None:
        if self.deliver is None:
            await self.socket.send("events_api", call)
            return
        self._unconfirmed.append((call, 0))
        await self.deliver_unconfirmed()

    async def deliver_unconfirmed(self) -> None:
        """Deliver the unconfirmed events in order. Slack repeats an event until the response is 200.

        If the bot is slow, several calls may be in flight at the same time.
        """
        while self.deliver is not None:
            waiting = [call for call in self._unconfirmed if not any(call is other for other in self._calling)]
            if not waiting:
                return
            envelope = waiting[0]
            call, tries = envelope
            retried = {"x-slack-retry-num": str(tries), "x-slack-retry-reason": "http_error"} if tries else {}
            body = msgspec.json.encode(call)
            self._calling.append(envelope)
            try:
                status = (await self.deliver({**self.signed(body, "application/json"), **retried}, body)).status
            finally:
                self._calling.remove(envelope)
            if status != 200:
                self._unconfirmed[self._unconfirmed.index(envelope)] = (call, tries + 1)
                return
            self._unconfirmed.remove(envelope)

    async def _interacts(self, kind: str, payload: Given) -> None:
        if self.deliver is None:
            await self.socket.send("interactive" if kind == "interactive" else "slash_commands", payload)
            return
        fields = {"payload": msgspec.json.encode(payload).decode()} if kind == "interactive" else payload
        body = urlencode({name: str(value) for name, value in fields.items()}).encode()
        await self.deliver(self.signed(body, "application/x-www-form-urlencoded"), body)

    def signed(self, body: bytes, kind: str, *, at: int = STARTED_AT, secret: str = SIGNING_SECRET) -> dict[str, str]:
        digest = hmac.new(secret.encode(), b"v0:%d:%b" % (at, body), hashlib.sha256).hexdigest()
        return {"content-type": kind, "x-slack-request-timestamp": str(at), "x-slack-signature": f"v0={digest}"}

    def _response_url(self) -> str:
        return f"{self.address}/respond/{self.fresh()}"

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        path = called.path.partition("?")[0]
        if path.startswith("/api/"):
            return await self._call(path.removeprefix("/api/"), called)
        if path.startswith("/upload/"):
            return self._uploaded(path.removeprefix("/upload/"), called)
        if path.startswith("/respond/"):
            answer: Given = msgspec.json.decode(called.body)
            self.answers.append(answer)
            return Answered(200, b"ok")
        if path.startswith("/files/"):
            return self._content(path.removeprefix("/files/"), called)
        return Answered(404)

    async def _call(self, method: str, called: Called) -> Answered:
        given = parameters_of(called, method)
        token = called.headers.get("authorization", "").removeprefix("Bearer ") or text_in(given, "token")
        if not token:
            raise refused("not_authed")
        if self.token_refused or token not in (BOT_TOKEN, APP_TOKEN):
            raise refused("invalid_auth")
        if (token == APP_TOKEN) != (method == "apps.connections.open"):
            raise refused("not_allowed_token_type")
        self.calls.append((method, given))
        if method == "apps.connections.open":
            return await self.weathered(lambda: ok({"ok": True, "url": self.socket.ticket()}), polls=True)
        method_called = self.methods.get(method)
        if method_called is None:
            raise refused("unknown_method")
        if method in POSTS:
            return await self.weathered(lambda: ok({"ok": True, **method_called(given)}))
        return ok({"ok": True, **method_called(given)})

    def too_many(self, seconds: float) -> Answered:
        return ok({"ok": False, "error": "ratelimited"}, 429, (("retry-after", f"{seconds:g}"),))

    def _uploaded(self, file: str, called: Called) -> Answered:
        if file not in self.files:
            return Answered(404)
        content = called.body
        if called.headers.get("content-type", "").startswith("multipart/"):
            content = next(iter(form_of(called.headers, called.body).values())).content
        self.contents[file] = content
        return Answered(200, f"OK - {len(content)}".encode(), (("content-type", "text/plain"),))

    def _content(self, file: str, called: Called) -> Answered:
        if called.headers.get("authorization") != f"Bearer {BOT_TOKEN}":
            return Answered(200, b"<!DOCTYPE html><title>Sign in</title>", (("content-type", "text/html"),))
        if file not in self.contents:
            return Answered(404)
        return Answered(200, self.contents[file], (("content-type", "application/octet-stream"),))
