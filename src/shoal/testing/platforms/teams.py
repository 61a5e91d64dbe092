"""A fake of the Bot Framework services for a Teams bot, on loopback. Source: learn.microsoft.com, Bot Framework
REST.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, unquote

import msgspec

from shoal.kernel.clock import Clock, SystemClock, iso
from shoal.kernel.webhooks import HttpAnswer
from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.teams_cards import buttons_of, offer_of, picture_of, text_of
from shoal.testing.platforms.teams_markup import shown_text
from shoal.testing.platforms.tokens import Signer, signer
from shoal.testing.platforms.wire import Answered, Called, Refused, ok

APP_ID = "00000000-0000-0000-0000-00000000b07a"
PASSWORD = "fake-password-for-tests-only"
TENANT = "11111111-1111-1111-1111-111111111111"
BOT = f"28:{APP_ID}"
ISSUER = "https://api.botframework.com"
PAYLOAD_BYTES_MAX = 28 * 1024
"""Maximum size of a payload in UTF-16 bytes, excluding Base64 pictures."""
CARD = "application/vnd.microsoft.card.adaptive"
CONSENT = "application/vnd.microsoft.teams.card.file.consent"
INFO = "application/vnd.microsoft.teams.card.file.info"
_PICTURE = re.compile(rb'"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=]*"')

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Given: TypeAlias = "dict[str, Json]"
Kind: TypeAlias = Literal["personal", "groupChat", "channel"]


class TeamsPosted(msgspec.Struct):
    """A message of the bot in its current state. Edits change it in place. `source` is the text before Markdown is
    parsed.
    """

    id: str
    conversation: str
    text: str
    source: str = ""
    buttons: tuple[tuple[str, str], ...] = ()
    file: tuple[str, bytes] | None = None
    reply_to: str = ""
    offer: str = ""
    entities: Json = None
    edits: int = 0


def refused(status: int, code: str) -> Refused:
    return Refused(ok({"error": {"code": code, "message": code}}, status))


class FakeTeams(FakePlatform):
    """A fake Teams with one bot. It signs activities, issues access tokens, and rejects invalid calls to the Connector
    API.

    Add chats with `add`. Use `says`, `clicks` and `accepts` to act as a person. `messages` lists the bot's messages,
    oldest first, and `typed` lists the conversations with a typing indicator. Activities are sent to `deliver`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.messages: list[TeamsPosted] = []
        self.typed: list[str] = []
        self._offered: dict[str, TeamsPosted] = {}
        self.answers: list[HttpAnswer] = []
        self.calls: list[tuple[str, str]] = []
        self.conversations: dict[str, Kind] = {}
        self.contents: dict[str, bytes] = {}
        self.granted = self.direct_refused = False
        self.signer: Signer = signer("teams-1")
        self.published: tuple[Signer, ...] = (self.signer,)
        self._clock = clock or SystemClock()
        self._tokens: set[str] = set()
        self._count = 0

    @property
    def service_url(self) -> str:
        return f"{self.server.address}/service/"

    def settings(self) -> dict[str, object]:
        """Return the account settings for an adapter that connects to this fake."""
        address = self.server.address
        return {
            "app_id": APP_ID,
            "app_password": PASSWORD,
            "openid_metadata_url": f"{address}/.well-known/openidconfiguration",
            "login_url": f"{address}/login",
            "service_url": self.service_url,
        }

    # ---- people ----

    def add(self, conversation: str, kind: Kind) -> None:
        self.conversations[conversation] = kind

    def activity(self, kind: str, conversation: str, user: str, root: str = "", **more: Json) -> Given:
        """Return a person's activity in a chat, or in the channel thread that starts with the message `root`."""
        bot: Given = {"id": BOT, "name": "Shoal"}
        person: Given = {"id": f"29:{user}", "name": user.title(), "aadObjectId": f"aad-{user}"}
        if user == "bot":
            person = {"id": "28:another-bot", "name": "Alerts", "role": "bot"}
        where = self.conversations[conversation]
        place: Given = {"conversationType": where, "tenantId": TENANT, "isGroup": where != "personal"}
        place["id"] = f"{conversation};messageid={root}" if root else conversation
        return {
            "type": kind, "id": self.fresh(), "timestamp": iso(self._clock.now()), "channelId": "msteams",
            "serviceUrl": self.service_url, "from": bot if user == "itself" else person, "recipient": bot,
            "conversation": place, "channelData": {"tenant": {"id": TENANT}}, **more,
        }  # fmt: skip

    async def says(
        self, conversation: str, text: str, *, user: str = "ada", root: str = "", named: bool = False, **more: Json
    ) -> str:
        """Write as a person and return the message's id.

        In a channel, `root` is the thread to reply in. Without `root`, the message starts a thread.
        """
        entities: list[Json] = []
        if named:
            text = f"<at>Shoal</at> {text}"
            entities.append({"type": "mention", "text": "<at>Shoal</at>", "mentioned": {"id": BOT, "name": "Shoal"}})
        message_id = self.fresh()
        if self.conversations[conversation] == "channel":
            root = root or message_id
        page: Json = {"contentType": "text/html", "content": f"<p>{text}</p>"}
        given: Given = {"id": message_id, "text": text, "textFormat": "plain", "entities": entities}
        await self.tells(self.activity("message", conversation, user, root, **{**given, "attachments": [page], **more}))
        return message_id

    async def sends_file(
        self, conversation: str, name: str, content: bytes, *, picture: bool = False, user: str = "ada"
    ) -> str:
        """Send a file as a person. A `picture` can be downloaded only with the bot's token."""
        file = self.fresh()
        self.contents[file] = content
        attached: Json = {
            "contentType": "application/vnd.microsoft.teams.file.download.info", "name": name,
            "contentUrl": "https://example.sharepoint.com/personal/ada/file",
            "content": {"downloadUrl": f"{self.server.address}/files/{file}", "uniqueId": file, "fileType": "txt"},
        }  # fmt: skip
        if picture:
            url = f"{self.service_url}v3/attachments/{file}/views/original"
            attached = {"contentType": "image/*", "contentUrl": url}
        return await self.says(conversation, "", user=user, attachments=[attached])

    async def changes(self, conversation: str, message_id: str, text: str, *, root: str = "", **more: Json) -> None:
        data: Json = {"eventType": "editMessage", "tenant": {"id": TENANT}}
        given: Given = {"id": message_id, "text": text, "channelData": data, **more}
        await self.tells(self.activity("messageUpdate", conversation, "ada", root, **given))

    async def adds(self, conversation: str, *, user: str = "ada") -> None:
        """Add the bot to a conversation as a person. Teams reports this with two activities."""
        members: Json = [{"id": BOT}, {"id": "29:ben"}]
        await self.tells(self.activity("conversationUpdate", conversation, user, membersAdded=members))
        await self.tells(self.activity("installationUpdate", conversation, user, action="add"))

    async def deletes(self, conversation: str, message_id: str, *, root: str = "") -> None:
        data: Json = {"eventType": "softDeleteMessage", "tenant": {"id": TENANT}}
        await self.tells(self.activity("messageDelete", conversation, "ada", root, id=message_id, channelData=data))

    async def reacts(
        self, conversation: str, message_id: str, reaction: str, *, root: str = "", user: str = "ada"
    ) -> None:
        """React to a message as a person. `reaction` is the name that Teams uses, such as `like`, `heart` or
        `274c_crossmark`.
        """
        added: Json = [{"type": reaction}]
        await self.tells(
            self.activity("messageReaction", conversation, user, root, replyToId=message_id, reactionsAdded=added)
        )

    async def clicks(self, message_id: str, label: str, *, user: str = "ada", submits: bool = False) -> HttpAnswer:
        """Click a button as a person. With `submits`, the click arrives as a message, as it does from an old client."""
        message = self.message(message_id)
        data: Json = {"shoal": dict(message.buttons)[label]}
        channel, _, root = message.conversation.partition(";messageid=")
        if submits:
            return await self.tells(
                self.activity("message", channel, user, root, replyToId=message_id, value=data, text=None)
            )
        action: Json = {"type": "Action.Execute", "verb": "shoal", "data": data}
        value: Json = {"action": action, "trigger": "manual"}
        given: Given = {"name": "adaptiveCard/action", "value": value, "replyToId": message_id}
        return await self.tells(self.activity("invoke", channel, user, root, **given))

    async def accepts(self, message_id: str, *, accepted: bool = True) -> HttpAnswer:
        message = self._offered.get(message_id) or self.message(message_id)
        self._offered[message_id] = message  # the answer may be delivered again after the card has been deleted
        file = self.fresh()
        upload: Json = {
            "uploadUrl": f"{self.server.address}/upload/{file}", "contentUrl": f"https://example.sharepoint.com/{file}",
            "uniqueId": file, "fileType": "bin", "name": message.text,
        }  # fmt: skip
        value: Given = {"type": "fileUpload", "context": {"shoal": message.offer}}
        value |= {"action": "accept", "uploadInfo": upload} if accepted else {"action": "decline"}
        given: Given = {"name": "fileConsent/invoke", "value": value, "replyToId": message_id}
        return await self.tells(self.activity("invoke", message.conversation, "ada", "", **given))

    async def tells(self, activity: Mapping[str, Json]) -> HttpAnswer:
        """Deliver a signed activity and return the bot's response. The status is 0 if the activity is held."""
        headers = self.signed(service_url=str(activity.get("serviceUrl")))

        async def deliver() -> HttpAnswer:
            assert self.deliver is not None, "set FakeTeams.deliver or call FakeTeams.call first"
            self.answers.append(await self.deliver(headers, msgspec.json.encode(activity)))
            return self.answers[-1]

        return await self.happen(deliver) or HttpAnswer(0)

    def signed(self, *, service_url: str = "", by: Signer | None = None, **claims: Json) -> dict[str, str]:
        """Return the signed headers of an activity. `claims` override the token's claims."""
        now = int(self._clock.now().timestamp())
        given: Given = {"iss": ISSUER, "aud": APP_ID, "nbf": now - 60, "exp": now + 3600, "serviceurl": service_url}
        token = (by or self.signer).token({**given, **claims})
        return {"authorization": f"Bearer {token}", "content-type": "application/json"}

    def message(self, message_id: str) -> TeamsPosted:
        return next(message for message in self.messages if message.id == message_id)

    def said(self, conversation: str) -> list[TeamsPosted]:
        """Return the bot's messages in a chat or in a channel, oldest first. A channel includes all of its threads."""
        return [message for message in self.messages if message.conversation.partition(";")[0] == conversation]

    async def sees(self, conversation: str, part: str) -> TeamsPosted:
        return await self.seen(lambda: self.said(conversation), part, lambda message: message.text)

    def fresh(self) -> str:
        """Return an unused id. Like the ids of Teams, it looks like a timestamp in milliseconds."""
        self._count += 1
        return str(1_767_603_600_000 + self._count)

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        self.calls.append((called.method, unquote(called.path)))
        path = called.path
        if path.startswith("/service/"):
            return await self._service(called)
        if path == "/.well-known/openidconfiguration":
            return ok({"issuer": ISSUER, "jwks_uri": f"{self.server.address}/keys"})
        if path == "/keys":
            return ok({"keys": [key.jwk(endorsements=["msteams"]) for key in self.published]})
        if path.startswith("/login/"):
            return self._grant(called)
        if path.startswith("/files/"):
            if "authorization" in called.headers:
                raise refused(400, "the bot sent its token to a file server")
            return Answered(200, self.contents[path.removeprefix("/files/")])
        if path.startswith("/upload/"):
            size = len(called.body)
            ranged = called.headers.get("content-range") == f"bytes 0-{size - 1}/{size}"
            if called.method != "PUT" or not ranged or "authorization" in called.headers:
                raise refused(400, "invalidRange")
            self.contents[path.removeprefix("/upload/")] = called.body
            return ok({"id": "drive-item"}, 201)
        raise refused(404, "NotFound")

    def _grant(self, called: Called) -> Answered:
        form = {name: values[0] for name, values in parse_qs(called.body.decode()).items()}
        if self.token_refused or (form.get("client_id"), form.get("client_secret")) != (APP_ID, PASSWORD):
            return Answered(401, b'{"error":"invalid_client"}')
        if form.get("scope") != "https://api.botframework.com/.default" or not called.path.endswith(
            "/oauth2/v2.0/token"
        ):
            return Answered(400, b'{"error":"invalid_scope"}')
        token = f"access-{self.fresh()}"
        self._tokens.add(token)
        self.granted = True
        return ok({"token_type": "Bearer", "expires_in": 86399, "access_token": token})

    def forget_tokens(self) -> None:
        """Invalidate all access tokens."""
        self._tokens.clear()

    async def _service(self, called: Called) -> Answered:
        if called.headers.get("authorization", "").removeprefix("Bearer ") not in self._tokens:
            raise refused(401, "Unauthorized")
        if called.path.startswith("/service/v3/attachments/"):
            return Answered(200, self.contents[called.path.split("/")[4]])
        if len(_PICTURE.sub(b'""', called.body).decode().encode("utf-16-le")) > PAYLOAD_BYTES_MAX:
            raise refused(413, "MessageSizeTooBig")
        path, given = called.path.removeprefix("/service/v3/conversations"), msgspec.json.decode(called.body or b"{}")
        if path == "" and called.method == "POST":
            return await self.weathered(lambda: self._opened(given))
        _, conversation, kind, *ids = (unquote(part) for part in path.split("/"))
        if kind != "activities" or conversation.partition(";messageid=")[0] not in self.conversations:
            raise refused(404, "ConversationNotFound")
        for place in (conversation, conversation.partition(";messageid=")[0]):
            if place in self.barred:
                raise refused(403, self.barred[place])
        if given.get("type") == "typing":
            self.typed.append(conversation)
            return ok({"id": self.fresh()}, 201)
        about = ids[0] if ids else ""
        if called.method == "DELETE":
            return await self.weathered(lambda: self._deleted(about))
        if called.method == "PUT":
            return await self.weathered(lambda: self._edited(about, given))
        return await self.weathered(lambda: self._posted(conversation, given, about))

    def _opened(self, given: Given) -> Answered:
        if given.get("isGroup"):
            channel = msgspec.convert(given.get("channelData"), dict[str, dict[str, str]])["channel"]["id"]
            activity = given["activity"]
            if self.conversations.get(channel) != "channel" or not isinstance(activity, Mapping):
                raise refused(404, "ConversationNotFound")
            root = self.fresh()
            posted = TeamsPosted(root, f"{channel};messageid={root}", "")
            self._read(posted, dict(activity))
            self.messages.append(posted)
            return ok({"id": posted.conversation, "activityId": root}, 201)
        members = given.get("members")
        if self.direct_refused or not (isinstance(members, list) and given.get("bot") == {"id": BOT}):
            raise refused(403, "BotNotInConversationRoster")
        (member,) = members
        assert isinstance(member, Mapping)
        conversation = f"a:{member['id']}"
        self.add(conversation, "personal")
        return ok({"id": conversation}, 201)

    def _posted(self, conversation: str, given: Given, answers: str) -> Answered:
        posted = TeamsPosted(self.fresh(), conversation, "", reply_to=answers)
        self._read(posted, given)
        self.messages.append(posted)
        return ok({"id": posted.id}, 201)

    def _deleted(self, message_id: str) -> Answered:
        self.messages.remove(self._found(message_id))
        return Answered(200)

    def _found(self, message_id: str) -> TeamsPosted:
        message = next((message for message in self.messages if message.id == message_id), None)
        if message is None:
            raise refused(404, "ActivityNotFoundInConversation")
        return message

    def _edited(self, message_id: str, given: Given) -> Answered:
        message = self._found(message_id)
        self._read(message, given)
        message.edits += 1
        return ok({"id": message.id})

    def _read(self, message: TeamsPosted, given: Given) -> None:
        attachments = given.get("attachments") or []
        if given.get("type") != "message" or not isinstance(attachments, list):
            raise refused(400, "BadSyntax")
        message.source, message.entities = str(given.get("text", "")), given.get("entities")
        message.text, message.buttons = shown_text(message.source), ()
        for attached in attachments:
            assert isinstance(attached, Mapping)
            self._read_attached(message, attached)
        if not message.text and not attachments:
            raise refused(400, "BadSyntax")

    def _read_attached(self, message: TeamsPosted, attached: Mapping[str, Json]) -> None:
        kind, name = attached.get("contentType"), str(attached.get("name", ""))
        try:
            if kind == CARD:
                message.text, message.buttons = shown_text(text_of(attached)), buttons_of(attached)
            elif kind == CONSENT:
                message.text, message.offer = name, offer_of(attached)
            elif kind == INFO:
                content = attached["content"]
                assert isinstance(content, Mapping)
                message.file = (name, self.contents[str(content["uniqueId"])])
            else:
                message.file = (name, picture_of(attached))
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AssertionError) as error:
            raise refused(400, "BadSyntax") from error
