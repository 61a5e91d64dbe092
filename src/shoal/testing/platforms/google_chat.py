"""A fake of Google's services for a Chat app, on loopback.

Sources: developers.google.com/workspace/chat, and the Chat API's discovery document.
"""

import base64
import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from shoal.kernel.clock import Clock, SystemClock, iso
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.google_chat_wire import (
    ChatMessage,
    Given,
    Json,
    buttons_of,
    check_assertion,
    check_message,
    page_of,
    refused,
)
from shoal.testing.platforms.tokens import Signer, signer
from shoal.testing.platforms.wire import Answered, Called, ok

PROJECT = "123456789012"
CHAT_ACCOUNT = "chat@system.gserviceaccount.com"
PUSH_ACCOUNT = "pusher@fake-project.iam.gserviceaccount.com"
PUSH_URL = "https://bot.example.org/platforms/google_chat"
APP_ACCOUNT = "app@fake-project.iam.gserviceaccount.com"
SUBSCRIPTION = "projects/fake/subscriptions/events"

_MESSAGES = re.compile(r"/v1/spaces/([^/]+)/messages")
_POSTS = re.compile(r"(POST|PATCH) /v1/spaces/[^/]+/messages")
_MESSAGE = re.compile(r"/v1/(spaces/[^/]+/messages/[^/]+)")


class FakeGoogleChat(FakePlatform):
    """A fake Google Chat with one app. It rejects invalid calls with Google's status codes.

    Add spaces with `add`. Use `says` and `clicks` to act as a person. `messages` lists all messages, oldest first.

    Events are signed HTTP calls to `deliver`. If `pulls` is set, they wait in a Pub/Sub subscription instead. Edits,
    deletions and reactions always arrive through Pub/Sub.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.messages: list[ChatMessage] = []
        self.spaces: dict[str, Literal["DIRECT_MESSAGE", "SPACE"]] = {}
        self.contents: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, bytes]] = []
        self.events: list[Given] = []
        self.waiting: deque[tuple[str, Given]] = deque()
        self.granted = 0
        self.pulls = False
        self.certificate_signer: Signer = signer("chat-1")
        self.oidc_signer: Signer = signer("oidc-1")
        self.app_signer: Signer = signer("app-1")
        self._clock = clock or SystemClock()
        self._tokens: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._count = 0

    def settings(self) -> dict[str, str]:
        """Return the account settings for an adapter that connects to this fake. The caller must write the key file."""
        address = self.server.address
        return {
            "audience": PROJECT, "api_base": address, "certs_url": f"{address}/certs",
            "oidc_certs_url": f"{address}/oidc", "push_account": PUSH_ACCOUNT, "pubsub_base": address,
            "subscription": SUBSCRIPTION if self.pulls else "",
        }  # fmt: skip

    def key_file(self) -> bytes:
        return msgspec.json.encode(
            {
                "type": "service_account", "client_email": APP_ACCOUNT, "private_key_id": self.app_signer.kid,
                "private_key": self.app_signer.pem(), "token_uri": f"{self.server.address}/token",
            }
        )  # fmt: skip

    # ---- people ----

    def add(self, space: str, kind: Literal["DIRECT_MESSAGE", "SPACE"]) -> None:
        self.spaces[space] = kind

    def person(self, user: str) -> Given:
        if user in ("app", "otherbot"):
            return {"name": f"users/{user}", "displayName": user.title(), "type": "BOT"}
        return {"name": f"users/{user}", "displayName": f"Person {user}", "type": "HUMAN", "email": f"{user}@x.org"}

    def space(self, space: str) -> Given:
        kind = self.spaces[space]
        old = "DM" if kind == "DIRECT_MESSAGE" else "ROOM"
        return {"name": f"spaces/{space}", "type": old, "spaceType": kind, "spaceThreadingState": "THREADED_MESSAGES"}

    async def says(
        self, space: str, text: str, *, user: str = "1001", thread: str = "", named: bool = True, quotes: str = "",
        attachment: tuple[Given, ...] = (), passes_on: bool = False, more: "Given | None" = None,
    ) -> str:  # fmt: skip
        """Write as a person and return the name of the message.

        In a space, the message mentions the app unless `named` is False.
        """
        is_direct = self.spaces[space] == "DIRECT_MESSAGE"
        shown = text if is_direct or not named else f"@Shoal {text}"
        message = self._keep(space, thread, user, shown, attachment=attachment)
        message.quoted, message.quote_type = quotes, "FORWARD" if passes_on else "REPLY"
        about = {**self.about(message), "argumentText": f" {text}" if shown != text else text, **(more or {})}
        if text.startswith("/"):
            about |= {"slashCommand": {"commandId": "1"}, "argumentText": text.partition(" ")[2]}
        if named or is_direct:
            await self._happens("MESSAGE", space, user, message=about)
        else:
            await self.publishes("message.v1.created", {"message": about})
        return message.name

    async def sends_file(self, space: str, name: str, content: bytes, *, user: str = "1001", named: bool = True) -> str:
        resource = base64.urlsafe_b64encode(f"file-{self.fresh()}".encode()).decode()
        self.contents[resource] = content
        file: Given = {
            "name": "spaces/x/attachments/1", "contentName": name, "contentType": "text/plain",
            "attachmentDataRef": {"resourceName": resource}, "source": "UPLOADED_CONTENT",
        }  # fmt: skip
        return await self.says(space, "", user=user, named=named, attachment=(file,))

    def quietly(self, space: str, text: str, *, user: str = "1001") -> str:
        """Post a message without sending the app an event, and return the name of the message."""
        return self._keep(space, "", user, text).name

    async def adds(self, space: str, *, user: str = "1001") -> None:
        await self._happens("ADDED_TO_SPACE", space, user)

    async def changes(self, name: str, text: str, *, named: bool = False) -> None:
        """Edit a message as its author, and mention the app if `named` is set.

        Source: the Chat API's discovery document, Annotation and UserMentionMetadata.
        """
        message = self.message(name)
        message.text = f"@Shoal {text}" if named else text
        message.changed_at = iso(self._clock.now() + timedelta(milliseconds=self.fresh()))
        mention: Given = {"type": "USER_MENTION", "userMention": {"user": self.person("app"), "type": "MENTION"}}
        annotations: Json = [{**mention, "startIndex": 0, "length": len("@Shoal")}] if named else []
        about = {**self.about(message), "argumentText": f" {text}" if named else text, "annotations": annotations}
        await self.publishes("message.v1.updated", {"message": about})

    async def deletes(self, name: str) -> None:
        message = self.message(name)
        self.messages.remove(message)
        now = iso(self._clock.now())
        gone: Given = {"name": name, "createTime": message.created_at, "deleteTime": now}
        await self.publishes("message.v1.deleted", {"message": gone})

    async def reacts(self, name: str, emoji: str, *, user: str = "1001") -> None:
        reaction: Given = {"name": f"{name}/reactions/r1", "user": self.person(user), "emoji": {"unicode": emoji}}
        await self.publishes("reaction.v1.created", {"reaction": reaction})

    async def clicks(self, name: str, label: str, *, user: str = "1001") -> None:
        message = self.message(name)
        parameters: Json = [{"key": "shoal", "value": dict(message.buttons)[label]}]
        action: Given = {"actionMethodName": "shoal", "parameters": parameters}
        await self._happens("CARD_CLICKED", message.space, user, message=self.about(message), action=action)

    async def chooses(self, space: str, number: int, *, user: str = "1001") -> None:
        """Select a command from the app's menu."""
        chosen: Given = {"appCommandId": number, "appCommandType": "QUICK_COMMAND"}
        await self._happens("APP_COMMAND", space, user, appCommandMetadata=chosen)

    def message(self, name: str) -> ChatMessage:
        return next(message for message in self.messages if message.name == name)

    def said(self, space: str) -> list[ChatMessage]:
        return [message for message in self.messages if message.space == space and message.sender == "app"]

    async def sees(self, space: str, part: str) -> ChatMessage:
        return await self.seen(lambda: self.said(space), part, lambda message: message.shown)

    def fresh(self) -> int:
        self._count += 1
        return self._count

    # ---- events ----

    async def _happens(self, kind: str, space: str, user: str, **more: Json) -> None:
        event: Given = {
            "type": kind, "eventTime": iso(self._clock.now()), "space": self.space(space), "user": self.person(user),
            **more,
        }  # fmt: skip
        self.events.append(event)
        if self.pulls:
            await self._publish({"data": _encoded(event), "attributes": {}})
        else:
            await self._call(event)

    async def publishes(self, kind: str, content: Given) -> None:
        """Report a change to a message through Pub/Sub, either by push or in the next pull."""
        await self._publish({"data": _encoded(content), "attributes": {"ce-type": f"google.workspace.chat.{kind}"}})

    async def _publish(self, content: Given) -> None:
        number = self.fresh()
        at = self._clock.now() + timedelta(microseconds=number)
        published: Given = {**content, "messageId": str(number), "publishTime": at.isoformat()}

        async def wait_for_pull() -> None:
            self.waiting.append((f"ack-{self.fresh()}", published))

        if self.pulls:
            await self.happen(wait_for_pull)
        else:
            await self._call({"message": published, "subscription": SUBSCRIPTION}, push=True)

    async def _call(self, content: Given, *, push: bool = False) -> None:
        async def deliver() -> None:
            assert self.deliver is not None, "set FakeGoogleChat.deliver or call FakeGoogleChat.call first"
            await self.deliver(self.signed(push=push), msgspec.json.encode(content))

        await self.happen(deliver)

    def signed(self, *, push: bool = False, by: Signer | None = None, **claims: Json) -> dict[str, str]:
        """Return the signed headers of an event, or of a Pub/Sub push if `push` is set. `claims` override the token's
        claims.
        """
        now = int(self._clock.now().timestamp())
        given: Given = {"iss": CHAT_ACCOUNT, "aud": PROJECT, "iat": now, "exp": now + 3600}
        if push:
            given |= {
                "iss": "https://accounts.google.com",
                "aud": PUSH_URL,
                "email": PUSH_ACCOUNT,
                "email_verified": True,
            }
        key = by or (self.oidc_signer if push else self.certificate_signer)
        return {"authorization": f"Bearer {key.token({**given, **claims})}", "content-type": "application/json"}

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        self.calls.append((called.method, called.path, called.body))
        if called.path == f"/v1/{SUBSCRIPTION}:pull":
            self._check_token(called, "pubsub")
            await self.until(lambda: self.waiting)
            held: list[Json] = [{"ackId": ack, "message": published} for ack, published in self.waiting]
            return await self.weathered(lambda: ok({"receivedMessages": held}), polls=True)
        if called.method in ("PATCH", "DELETE") or (
            called.method == "POST" and _MESSAGES.fullmatch(urlsplit(called.path).path)
        ):
            return await self.weathered(lambda: self._answer(called))
        return self._answer(called)

    def _answer(self, called: Called) -> Answered:
        parts = urlsplit(called.path)
        match parts.path:
            case "/certs":
                return ok({self.certificate_signer.kid: self.certificate_signer.certificate()})
            case "/oidc":
                return ok({"keys": [self.oidc_signer.jwk()]})
            case "/token":
                return self._grant(called)
            case path if path == f"/v1/{SUBSCRIPTION}:acknowledge":
                self._check_token(called, "pubsub")
                done = msgspec.json.decode(called.body)["ackIds"]
                self.waiting = deque(item for item in self.waiting if item[0] not in done)
                return ok({})
            case path:
                self._check_token(called, "chat.bot")
                params = {name: values[0] for name, values in parse_qs(parts.query).items()}
                return self._api(called, unquote(path), params)

    def _grant(self, called: Called) -> Answered:
        form = {name: values[0] for name, values in parse_qs(called.body.decode()).items()}
        if self.token_refused:
            return Answered(401, b'{"error":"invalid_grant"}')
        scope = check_assertion(form, self.app_signer, APP_ACCOUNT, f"{self.server.address}/token", self._clock.now())
        token = f"ya29-{self.fresh()}"
        self._tokens[token] = scope
        self.granted += 1
        return ok({"access_token": token, "expires_in": 3599, "token_type": "Bearer"})

    def _check_token(self, called: Called, scope: str) -> None:
        held = self._tokens.get(called.headers.get("authorization", "").removeprefix("Bearer "))
        if held is None or self.token_refused:
            raise refused(401, "UNAUTHENTICATED")
        if f"https://www.googleapis.com/auth/{scope}" not in held.split():
            raise refused(403, "PERMISSION_DENIED")

    def _api(self, called: Called, path: str, params: Mapping[str, str]) -> Answered:
        if path.startswith("/v1/media/") and params == {"alt": "media"}:
            return Answered(200, self.contents[path.removeprefix("/v1/media/")])
        if path == "/v1/spaces:findDirectMessage":
            spaces = [space for space, kind in self.spaces.items() if kind == "DIRECT_MESSAGE"]
            return ok(self.space(spaces[0]))
        inside, one = _MESSAGES.fullmatch(path), _MESSAGE.fullmatch(path)
        if inside is not None and inside[1] in self.spaces:
            if called.method == "POST":
                return self._create(inside[1], msgspec.json.decode(called.body), params)
            self._check_token(called, "chat.app.messages.readonly")
            return self._list(inside[1], params)
        message = next(
            (message_found for message_found in self.messages if one is not None and message_found.name == one[1]), None
        )
        if message is None:
            raise refused(404, "NOT_FOUND")
        if called.method == "PATCH":
            self._change(message, msgspec.json.decode(called.body), params)
        if called.method == "DELETE":
            if message.sender != "app":
                raise refused(403, "PERMISSION_DENIED")
            self.messages.remove(message)
            return ok({})
        return ok(self.about(message))

    def _create(self, space: str, given: Given, params: Mapping[str, str]) -> Answered:
        thread = given.get("thread")
        named = str(thread.get("name", "")) if isinstance(thread, Mapping) else ""
        for place in (f"spaces/{space}", named):
            if place in self.barred:
                raise refused(403, self.barred[place])
        known = self._requests.get(params.get("requestId", ""))
        if known is None:
            known = self._posted(space, given, params).name
            self._requests[params["requestId"]] = known
        return ok(self.about(self.message(known)))

    def _posted(self, space: str, given: Given, params: Mapping[str, str]) -> ChatMessage:
        parts = check_message(
            given, {message.name: message.changed_at or message.created_at for message in self.messages}
        )
        if parts.thread and (params.get("messageReplyOption") or "").startswith("REPLY_MESSAGE_"):
            thread = parts.thread.rpartition("/")[2]
        else:
            thread = ""
        message = self._keep(space, thread, "app", parts.text)
        message.syntax = str(given.get("markupSyntax", ""))
        message.buttons, message.viewer, message.quoted = buttons_of(given), parts.viewer, parts.quoted
        return message

    def _change(self, message: ChatMessage, given: Given, params: Mapping[str, str]) -> None:
        if message.sender != "app" or params.get("updateMask") != "text,cardsV2":
            raise refused(403 if message.sender != "app" else 400, "INVALID_ARGUMENT")
        message.text, message.buttons = check_message(given, {}).text, buttons_of(given)
        message.syntax = str(given.get("markupSyntax", ""))
        message.edits += 1

    def _list(self, space: str, params: Mapping[str, str]) -> Answered:
        page, more = page_of([message for message in self.messages if message.space == space], params)
        return ok({"messages": [self.about(message) for message in page], "nextPageToken": more})

    def _keep(self, space: str, thread: str, sender: str, text: str, attachment: tuple[Given, ...] = ()) -> ChatMessage:
        number = self.fresh()
        thread = thread or f"t{number}"
        name = f"spaces/{space}/messages/{thread}.t{number}"
        made = ChatMessage(name, space, thread, sender, text, iso(self._clock.now()), attachment=attachment)
        self.messages.append(made)
        return made

    def about(self, message: ChatMessage) -> Given:
        data: Given = {
            "name": message.name, "sender": self.person(message.sender), "createTime": message.created_at,
            "text": message.text, "space": {"name": f"spaces/{message.space}"},
            "thread": {"name": f"spaces/{message.space}/threads/{message.thread}"},
        }  # fmt: skip
        if message.changed_at:
            data["lastUpdateTime"] = message.changed_at
        if message.quoted:
            quoted = next((candidate for candidate in self.messages if candidate.name == message.quoted), None)
            snapshot: Json = {"sender": f"Person {quoted.sender}", "text": quoted.text} if quoted is not None else None
            source: Json = {"space": "spaces/elsewhere", "spaceDisplayName": "Elsewhere"}
            data["quotedMessageMetadata"] = {
                "name": message.quoted, "quoteType": message.quote_type, "quotedMessageSnapshot": snapshot,
                **({"forwardedMetadata": source} if message.quote_type == "FORWARD" else {}),
            }  # fmt: skip
        return {**data, "attachment": message.attachment} if message.attachment else data


def _encoded(content: Mapping[str, Json] | Sequence[Json]) -> str:
    return base64.b64encode(msgspec.json.encode(content)).decode()
