"""A fake of the Telegram Bot API, on loopback. Source: core.telegram.org/bots/api."""

import asyncio
import itertools
import mimetypes
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from shoal.testing.platforms.fake import FakePlatform
from shoal.testing.platforms.telegram_markup import BadMarkup, checked_entities
from shoal.testing.platforms.telegram_wire import (
    Sent,
    buttons_of,
    check_media,
    entities_of,
    int_of,
    parameters_of,
    refused,
    user_of,
)
from shoal.testing.platforms.wire import Answered, Called, Given, Json, Part, ok

TOKEN = "123456:AAFakeTokenForTestsOnly"
BOT_ID = 123456
BOT_NAME = "shoal_test_bot"
TEXT_UNITS_MAX = 4096
CAPTION_UNITS_MAX = 1024
ALBUM_MIN, ALBUM_MAX = 2, 10
STARTED_AT = 1_767_603_600


class FakeTelegram(FakePlatform):
    """A fake Telegram with one bot. It rejects invalid calls with Telegram's own messages.

    Add chats with `add_chat`. Use `says` and `clicks` to act as a person. To send updates by webhook, set `deliver`.

    - `messages`: all messages, oldest first.
    - `said`: returns the bot's messages in a chat.
    - `calls`: the bot's calls with their parameters.
    - `answers`: the bot's answers to clicks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Sent] = []
        self.calls: list[tuple[str, Given]] = []
        self.updates: list[Given] = []
        self.moved: dict[int, int] = {}
        self._numbers_in: dict[int, Iterator[int]] = {}
        self.webhook: Given = {}
        self.answers: list[str] = []
        self.chats: dict[int, tuple[str, set[int]]] = {}
        self._updates: deque[Given] = deque()
        self._calling: set[int] = set()
        self.allowed: frozenset[str] = frozenset()
        self._files: dict[str, tuple[str, bytes]] = {}
        self._next, self._numbers_from = 0, 1_000_000
        self._methods: Mapping[str, Callable[[Given, Mapping[str, Part]], Json]] = {
            "getMe": lambda _, __: self._bot(),
            "setMyCommands": lambda _, __: True,
            "setWebhook": self._set_webhook,
            "deleteWebhook": self._delete_webhook,
            "sendMessage": self._send_message,
            "sendDocument": lambda given, files: self._send_file("document", given, files),
            "sendPhoto": lambda given, files: self._send_file("photo", given, files),
            "sendAnimation": lambda given, files: self._send_file("animation", given, files),
            "sendMediaGroup": self._send_album,
            "sendVoice": lambda given, files: self._send_file("voice", given, files),
            "editMessageText": self._edit_text,
            "deleteMessage": self._delete_message,
            "sendChatAction": lambda given, _: self._place(given) >= 0,
            "answerCallbackQuery": self._answer_click,
            "getFile": self._get_file,
        }

    # ---- people ----

    def add_chat(self, chat: int, kind: str = "private", topics: tuple[int, ...] = ()) -> None:
        """Add a chat. Groups have negative ids. `topics` lists the ids of a forum's topics."""
        self.chats[chat] = (kind, set(topics))

    async def says(
        self, chat: int, text: str, *, user: int = 7, topic: int = 0, is_bot: bool = False, reply_to: int = 0
    ) -> int:
        sent = self._keep(Sent(0, chat, topic, user, text, reply_to=reply_to))
        message = self._message(sent)
        message["from"] = user_of(user, is_bot=is_bot)
        message["entities"] = entities_of(text)
        await self._happens("message", message)
        return sent.id

    async def publishes(self, channel: int, text: str, *, signature: str = "") -> int:
        """Post in a channel and return the message's id. The bot is an administrator there, but does not learn the
        author.

        Sources: core.telegram.org/bots/api#update (channel_post) and #message (sender_chat, author_signature).
        """
        sent = self._keep(Sent(0, channel, 0, channel, text))
        chat: dict[str, Json] = {"id": channel, "type": "channel", "title": "Tides"}
        message: dict[str, Json] = {**self._message(sent), "chat": chat, "sender_chat": chat}
        message.pop("from")
        message |= {"entities": entities_of(text), **({"author_signature": signature} if signature else {})}
        await self._happens("channel_post", message)
        return sent.id

    async def migrates(self, old: int, new: int, *, told: Sequence[int] = (0, 1)) -> None:
        """Turn a group into a supergroup.

        Both chats get a notice. Calls with the old id fail with an error that contains the new id. Message ids restart
        in the supergroup. `told` selects the notices that the bot gets, and their order: 0 is the old chat's notice and
        1 is the new chat's.

        Sources: core.telegram.org/bots/api#message (migrate_to_chat_id, migrate_from_chat_id) and #responseparameters.
        """
        topics = self.chats.pop(old)[1]
        self.chats[new], self.moved[old] = ("supergroup", topics), new
        self._numbers_in[new] = itertools.count(3)
        await self.migrates_again(old, new, told=told)

    async def migrates_again(self, old: int, new: int, *, told: Sequence[int] = (0, 1)) -> None:
        """Send the notices of a migration again, not necessarily those of the latest one."""
        notes = ((old, "group", {"migrate_to_chat_id": new}), (new, "supergroup", {"migrate_from_chat_id": old}))
        for number in told:
            chat, kind, note = notes[number]
            place: dict[str, Json] = {"id": chat, "type": kind, "title": "harbour"}
            message: dict[str, Json] = {"message_id": number + 1, "chat": place, "date": STARTED_AT, "from": user_of(7)}
            await self._happens("message", {**message, **note})

    async def changes(self, message_id: int, text: str) -> None:
        sent = next(message for message in reversed(self.messages) if message.id == message_id)
        sent.text = text
        at = STARTED_AT + self._fresh()
        message: dict[str, Json] = {**self._message(sent), "from": user_of(sent.user), "edit_date": at}
        message["entities"] = entities_of(text)
        await self._happens("edited_message", message)

    async def reacts(self, message_id: int, emoji: str, *, user: int = 7) -> None:
        sent = next(message for message in reversed(self.messages) if message.id == message_id)
        message = self._message(sent)
        reaction: dict[str, Json] = {
            "chat": message["chat"], "message_id": sent.id, "user": user_of(user), "date": STARTED_AT,
            "old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": emoji}],
        }  # fmt: skip
        await self._happens("message_reaction", reaction)

    async def adds(self, chat: int, *, user: int = 7) -> None:
        was: dict[str, Json] = {"user": self._bot(), "status": "left"}
        is_now: dict[str, Json] = {"user": self._bot(), "status": "member"}
        place: dict[str, Json] = {"id": chat, "type": self.chats[chat][0], "title": "harbour"}
        change: dict[str, Json] = {"chat": place, "from": user_of(user), "date": STARTED_AT}
        await self._happens("my_chat_member", {**change, "old_chat_member": was, "new_chat_member": is_now})

    async def sends(self, chat: int, content: Given, *, user: int = 7, topic: int = 0, reply_to: int = 0) -> int:
        """Send a non-text message as a person. `content` contains the fields of the message, such as a sticker."""
        sent = self._keep(Sent(0, chat, topic, user, "", reply_to=reply_to))
        message: dict[str, Json] = {**self._message(sent), "from": user_of(user)}
        message.pop("text", None)
        await self._happens("message", {**message, **content})
        return sent.id

    async def sends_album(self, chat: int, names: Sequence[str], caption: str = "", *, captioned: int = 0) -> None:
        """Send documents as an album, one message per document. The document at index `captioned` has the caption."""
        album = f"album-{self._fresh()}"
        for number, name in enumerate(names):
            words: Given = {"caption": caption, "caption_entities": entities_of(caption)} if number == captioned else {}
            file = self._keep_file(name, name.encode())
            await self.sends(chat, {"media_group_id": album, "document": file, **words})

    def quietly(self, chat: int, text: str, *, user: int, file: tuple[str, bytes] | None = None) -> int:
        """Write a message or send a file without sending the bot an update, and return the message's id."""
        return self._keep(Sent(0, chat, 0, user, text, file=file)).id

    def restart_update_ids(self) -> None:
        """Restart update ids at lower numbers, as Telegram may do after a week without updates."""
        self._numbers_from = 0

    async def sends_file(
        self, chat: int, name: str, content: bytes, *, user: int = 7, caption: str = "", topic: int = 0,
        more: Given | None = None,
    ) -> int:  # fmt: skip
        sent = self._keep(Sent(0, chat, topic, user, caption, file=(name, content)))
        file = self._keep_file(name, content)
        message: dict[str, Json] = {**self._message(sent), "from": user_of(user), "document": file, "caption": caption}
        message.pop("text", None)
        await self._happens("message", {**message, **(more or {})})
        return sent.id

    async def sends_voice(
        self, chat: int, content: bytes, *, user: int = 7, topic: int = 0, reply_to: int = 0, more: Given | None = None
    ) -> int:
        sent = self._keep(Sent(0, chat, topic, user, "", reply_to=reply_to, file=("", content)))
        file = {**self._keep_file("", content), "duration": 2, "mime_type": "audio/ogg"}
        file.pop("file_name")
        message: dict[str, Json] = {**self._message(sent), "from": user_of(user), "voice": file}
        message.pop("text", None)
        message.pop("document")
        await self._happens("message", {**message, **(more or {})})
        return sent.id

    async def clicks(self, message_id: int, label: str, *, user: int = 7, chat: int = 0) -> None:
        """Click a button on a message as a person. If `chat` is 0, look for the message in all chats."""
        sent = next(message for message in self.messages if message.id == message_id and chat in (0, message.chat))
        value = dict(sent.buttons)[label]
        click: dict[str, Json] = {
            "id": f"click-{self._fresh()}", "from": user_of(user), "message": self._message(sent), "data": value,
            "chat_instance": str(sent.chat),
        }  # fmt: skip
        await self._happens("callback_query", click)

    async def redeliver(self) -> None:
        """Deliver the last update again. A polling bot gets it with a new id, because the bot has confirmed the old
        one.
        """
        if not self.webhook:
            last = {**self.updates[-1], "update_id": self._fresh() + self._numbers_from}
            self._updates.append(last)
            await self.tell()
        else:
            await super().redeliver()

    async def sees(self, chat: int, part: str) -> Sent:
        return await self.seen(lambda: self.said(chat), part, lambda message: message.text)

    async def fetched(self) -> None:
        """Wait until the bot has fetched all updates."""
        await self.until(lambda: not self._updates)

    async def called(self, method: str) -> Given:
        """Wait until the bot has called a method, and return the parameters of its last call."""
        await self.until(lambda: any(name == method for name, _ in self.calls))
        return next(given for name, given in reversed(self.calls) if name == method)

    def said(self, chat: int) -> list[Sent]:
        return [message for message in self.messages if message.chat == chat and message.user == BOT_ID]

    def pending(self) -> bytes:
        """Remove the oldest pending update and return it as the body of a webhook call."""
        return msgspec.json.encode(self._updates.popleft())

    # ---- HTTP ----

    async def respond(self, called: Called) -> Answered:
        path = PurePosixPath(called.path.partition("?")[0])
        if called.path.startswith("/file/bot"):
            file = self._files.get(called.path.rpartition("/")[2])
            return Answered(200, file[1]) if f"/bot{TOKEN}/" in called.path and file is not None else Answered(404)
        token, method = path.parent.name.removeprefix("bot"), path.name
        if self.token_refused or token != TOKEN:
            raise refused(401, "Unauthorized")
        given, files = parameters_of(called)
        self.calls.append((method, given))
        if method == "getUpdates":
            updates = await self._get_updates(given)
            return await self.weathered(lambda: ok({"ok": True, "result": updates}), polls=True)
        method_called = self._methods.get(method)
        if method_called is None:
            raise refused(404, "Not Found: method not found")
        if (method.startswith("send") and method != "sendChatAction") or method in ("editMessageText", "deleteMessage"):
            return await self.weathered(lambda: ok({"ok": True, "result": method_called(given, files)}))
        return ok({"ok": True, "result": method_called(given, files)})

    def too_many(self, seconds: float) -> Answered:
        return refused(429, f"Too Many Requests: retry after {seconds:g}", retry_after=seconds).answer

    async def _get_updates(self, given: Given) -> Json:
        if self.webhook:
            raise refused(409, "Conflict: can't use getUpdates method while webhook is active")
        offset, allowed = int_of(given, "offset"), given.get("allowed_updates")
        if isinstance(allowed, list) and allowed:
            self.allowed = frozenset(map(str, allowed))
        self._updates = deque(update for update in self._updates if int_of(update, "update_id") >= offset)
        await self.tell()
        try:
            async with asyncio.timeout(int_of(given, "timeout")):
                await self.until(lambda: self._updates)
        except TimeoutError:
            return []
        updates: list[Json] = []
        updates.extend(self._updates)
        return updates[:100]

    async def _happens(self, kind: str, content: dict[str, Json]) -> None:
        if self.allowed and kind not in self.allowed:  # Telegram does not store updates that a bot did not request
            return
        update: Given = {"update_id": self._fresh() + self._numbers_from, kind: content}
        self.updates.append(update)
        await self.happen(lambda: self._deliver(update))

    async def _deliver(self, update: Given) -> None:
        """Queue an update. If a webhook is set, send it the queued updates in order, and stop at a response other than
        200.

        A slow webhook may get several calls at the same time.
        """
        self._updates.append(update)
        headers = {"x-telegram-bot-api-secret-token": str(self.webhook.get("secret_token", ""))}
        while self.webhook and self.deliver is not None:
            waiting = [update for update in self._updates if int_of(update, "update_id") not in self._calling]
            if not waiting:
                return
            number = int_of(waiting[0], "update_id")
            self._calling.add(number)
            try:
                if (await self.deliver(headers, msgspec.json.encode(waiting[0]))).status != 200:
                    return
            finally:
                self._calling.discard(number)
            self._updates.remove(waiting[0])

    # ---- methods ----

    def _set_webhook(self, given: Given, files: Mapping[str, Part]) -> Json:
        if not str(given.get("url", "")).startswith("https://"):
            raise refused(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        self.webhook = given
        allowed = given.get("allowed_updates")
        self.allowed = frozenset(map(str, allowed)) if isinstance(allowed, list) else frozenset()
        return True

    def _delete_webhook(self, given: Given, files: Mapping[str, Part]) -> Json:
        self.webhook = {}
        return True

    def _send_message(self, given: Given, files: Mapping[str, Part]) -> Json:
        self._place(given)
        text = self._checked_text(given, "text", TEXT_UNITS_MAX, "message is too long")
        if not text.strip():
            raise refused(400, "Bad Request: message text is empty")
        return self._made(given, text, None)

    def _send_file(self, kind: str, given: Given, files: Mapping[str, Part]) -> Json:
        self._place(given)
        caption = self._checked_text(given, "caption", CAPTION_UNITS_MAX, "message caption is too long")
        part = files.get(kind)
        if part is None or not part.content:
            raise refused(400, "Bad Request: file must be non-empty")
        check_media(kind, part.content)
        made = self._made(given, caption, (part.filename, part.content))
        self.messages[-1].kind = kind
        return made

    def _send_album(self, given: Given, files: Mapping[str, Part]) -> Json:
        """Store an album as the single message that people see. The bot gets one message per file."""
        self._place(given)
        media = given.get("media")
        items = [item for item in media if isinstance(item, dict)] if isinstance(media, list) else []
        if not ALBUM_MIN <= len(items) <= ALBUM_MAX:
            raise refused(400, "Bad Request: wrong number of messages in the album")
        parts = [files.get(str(item.get("media", "")).removeprefix("attach://")) for item in items]
        kinds = {str(item.get("type", "")) for item in items}
        if None in parts or not (kinds <= {"photo", "video"} or len(kinds) == 1):
            raise refused(400, "Bad Request: wrong file identifier/HTTP URL specified")
        sent = [(part.filename, part.content) for part in parts if part is not None]
        for item, (_, content) in zip(items, sent, strict=True):
            check_media(str(item.get("type", "")), content)
        caption = self._checked_text(items[0], "caption", CAPTION_UNITS_MAX, "message caption is too long")
        made = self._made(given, caption, sent[0])
        self.messages[-1].kind, self.messages[-1].album = kinds.pop(), tuple(sent[1:])
        return [made for _ in sent]

    def _edit_text(self, given: Given, files: Mapping[str, Part]) -> Json:
        message = self._find(given)
        if message.user != BOT_ID:
            raise refused(400, "Bad Request: message can't be edited")
        text = self._checked_text(given, "text", TEXT_UNITS_MAX, "message is too long")
        buttons = buttons_of(given)
        if text == message.text and str(given.get("text", "")) == message.raw and buttons == message.buttons:
            raise refused(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the "
                "same as a current content and reply markup of the message",
            )
        message.text, message.raw, message.buttons = text, str(given.get("text", "")), buttons
        message.edits += 1
        return self._message(message)

    def _delete_message(self, given: Given, files: Mapping[str, Part]) -> Json:
        self.messages.remove(self._find(given))
        return True

    def _answer_click(self, given: Given, files: Mapping[str, Part]) -> Json:
        text = str(given.get("text", ""))
        if len(text) > 200:
            raise refused(400, "Bad Request: MESSAGE_TOO_LONG")
        self.answers.append(text)
        return True

    def _get_file(self, given: Given, files: Mapping[str, Part]) -> Json:
        file = str(given.get("file_id", ""))
        if file not in self._files:
            raise refused(400, "Bad Request: invalid file_id")
        return {"file_id": file, "file_unique_id": file, "file_path": f"documents/{file}"}

    # ---- validation and storage ----

    def _place(self, given: Given) -> int:
        chat = self.chats.get(int_of(given, "chat_id"))
        if chat is None:
            moved = self.moved.get(int_of(given, "chat_id"), 0)
            why = "group chat was upgraded to a supergroup chat" if moved else "chat not found"
            raise refused(400, f"Bad Request: {why}", **({"migrate_to_chat_id": moved} if moved else {}))
        topic, there = int_of(given, "message_thread_id"), int_of(given, "chat_id")
        why = self.barred.get(str(there)) or self.barred.get(f"{there}/{topic}")
        if why:  # TDLib and the Bot API server answer "Forbidden: …" with 403
            raise refused(403 if why.startswith("Forbidden") else 400, why)
        if topic and topic not in chat[1]:
            raise refused(400, "Bad Request: message thread not found")
        return topic

    def _checked_text(self, given: Given, field: str, units_max: int, too_long: str) -> str:
        text = str(given.get(field, "") or "")
        try:
            checked_entities(text, given.get("entities" if field == "text" else "caption_entities"))
        except BadMarkup as error:
            raise refused(400, f"Bad Request: {error}") from error
        if len(text.encode("utf-16-le")) // 2 > units_max:
            raise refused(400, f"Bad Request: {too_long}")
        return text

    def _made(self, given: Given, text: str, file: tuple[str, bytes] | None) -> Json:
        reply = given.get("reply_parameters")
        reply_to = 0
        if isinstance(reply, dict):
            reply_to = int_of(reply, "message_id")
            if not any(message.id == reply_to for message in self.messages):
                if not reply.get("allow_sending_without_reply"):
                    raise refused(400, "Bad Request: message to be replied not found")
                reply_to = 0
        chat, topic = int_of(given, "chat_id"), int_of(given, "message_thread_id")
        sent = Sent(0, chat, topic, BOT_ID, text, str(given.get("text", "")), reply_to, buttons_of(given), file)
        return self._message(self._keep(sent))

    def _keep(self, sent: Sent) -> Sent:
        numbers = self._numbers_in.get(sent.chat)
        sent.id = next(numbers) if numbers is not None else self._fresh()
        self.messages.append(sent)
        return sent

    def _keep_file(self, name: str, content: bytes) -> dict[str, Json]:
        file = f"file-{self._fresh()}"
        self._files[file] = (name, content)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        known: dict[str, Json] = {"file_id": file, "file_unique_id": file, "file_name": name, "mime_type": kind}
        return {**known, "file_size": len(content)}

    def _find(self, given: Given) -> Sent:
        self._place(given)
        for message in self.messages:
            if message.id == int_of(given, "message_id") and message.chat == int_of(given, "chat_id"):
                return message
        raise refused(400, "Bad Request: message to edit not found")

    def _message(self, sent: Sent) -> dict[str, Json]:
        kind = self.chats.get(sent.chat, ("group", ()))[0]
        title = {} if kind == "private" else {"title": "harbour"}
        message: dict[str, Json] = {
            "message_id": sent.id, "chat": {"id": sent.chat, "type": kind, **title}, "date": STARTED_AT + sent.id,
            "from": self._bot() if sent.user == BOT_ID else user_of(sent.user), "text": sent.text,
        }  # fmt: skip
        if sent.topic:
            message |= {"message_thread_id": sent.topic, "is_topic_message": True}
        if sent.file is not None and sent.user != BOT_ID:
            message["document"] = self._keep_file(*sent.file)
            message.pop("text")
        replied = next(
            (message for message in self.messages if sent.reply_to == message.id and message.chat == sent.chat), None
        )
        if replied is not None:
            message["reply_to_message"] = self._message(replied)
        return message

    def _bot(self) -> dict[str, Json]:
        return {"id": BOT_ID, "is_bot": True, "first_name": "Shoal", "username": BOT_NAME}

    def _fresh(self) -> int:
        self._next += 1
        return self._next
