"""The Web API methods of the fake Slack. They reject the calls that Slack rejects.

Source: docs.slack.dev/reference/methods.
"""

import itertools
import re
from collections.abc import Callable, Mapping

import msgspec

from shoal.testing.platforms.slack_wire import (
    STREAM_CHARS_MAX,
    TEXT_CHARS_MAX,
    UPDATE_CHARS_MAX,
    Room,
    Sent,
    check_blocks,
    check_metadata,
    check_text,
    is_true,
    refused,
    text_in,
)
from shoal.testing.platforms.wire import Given, Json

TEAM = "T1"
APP = "A1"
BOT = "UBOT"
BOT_ID = "BBOT"
BOT_NAME = "shoal"
STARTED_AT = 1_767_603_600
"""Default start time of a `ManualClock`, as a Unix timestamp."""

_NAME = re.compile(r"[\w-]{1,80}")
_TS = re.compile(r"\d+\.\d{6}")
Method = Callable[[Given], Mapping[str, Json]]


def _checked(look: Callable[[Given], object]) -> Method:
    def method(given: Given) -> Mapping[str, Json]:
        look(given)
        return {}

    return method


class Workspace:
    """The people, channels and messages of a workspace, with the methods that read and change them."""

    barred: dict[str, str]

    def __init__(self, started_at: float = STARTED_AT) -> None:
        self.users: dict[str, Given] = {}
        self.rooms: dict[str, Room] = {}
        self.messages: list[Sent] = []
        self.deleted: set[tuple[str, str]] = set()
        self.files: dict[str, Given] = {}
        self.contents: dict[str, bytes] = {}
        self.statuses: list[tuple[str, str, str]] = []
        self.streaming_offered = True
        self.scopes_missing: set[str] = set()
        self.address = ""
        self.homes: dict[str, list[Json]] = {}
        self._started_at = int(started_at)
        self._numbers = itertools.count(1)
        self.methods: dict[str, Method] = {
            "api.test": lambda given: {"args": given},
            "auth.test": lambda _: {
                "user_id": BOT, "bot_id": BOT_ID, "team_id": TEAM, "team": "Harbour", "user": BOT_NAME,
                "url": f"{self.address}/",
            },
            "team.info": lambda _: {"team": {"id": TEAM, "name": "Harbour", "domain": "harbour"}},
            "bots.info": lambda _: {"bot": {"id": BOT_ID, "app_id": APP, "user_id": BOT, "name": BOT_NAME}},
            "users.info": lambda given: {"user": self._user(given)},
            "users.list": lambda _: {"members": list[Json](self.users.values())},
            "users.conversations": lambda _: {"channels": [self._shown(room) for room in self.rooms.values()]},
            "chat.postMessage": self._post,
            "chat.postEphemeral": self._post_ephemeral,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "chat.getPermalink": self._permalink,
            "chat.startStream": self._start_stream,
            "chat.appendStream": self._append_stream,
            "chat.stopStream": self._stop_stream,
            "assistant.threads.setStatus": self._set_status,
            "assistant.threads.setTitle": _checked(lambda given: self.room(given, "channel_id")),
            "assistant.threads.setSuggestedPrompts": _checked(lambda given: self.room(given, "channel_id")),
            "views.publish": self._publish,
            "conversations.list": lambda _: {"channels": [self._shown(room) for room in self.rooms.values()]},
            "conversations.info": lambda given: {"channel": self._shown(self.room(given))},
            "conversations.members": lambda given: {"members": list[Json](self.room(given).members)},
            "conversations.create": self._create,
            "conversations.open": self._open,
            "conversations.invite": self._invite,
            "conversations.join": self._join,
            "conversations.leave": self._leave,
            "conversations.archive": self._archive,
            "conversations.rename": self._rename,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            "reactions.add": _checked(lambda given: self.find(given, "timestamp")),
            "reactions.remove": _checked(lambda given: self.find(given, "timestamp")),
            "pins.add": _checked(lambda given: self.find(given, "timestamp")),
            "files.getUploadURLExternal": self._upload_url,
            "files.completeUploadExternal": self._complete_upload,
            "files.info": lambda given: {"file": self._file(given)},
            "files.delete": _checked(lambda given: self.files.pop(text_in(given, "file"), None)),
        }  # fmt: skip

    def fresh(self) -> int:
        return next(self._numbers)

    def stamp(self) -> str:
        """Return the next timestamp, one second after the previous one."""
        number = self.fresh()
        return f"{self._started_at + number}.{number:06d}"

    def keep(self, sent: Sent) -> Sent:
        self.messages.append(sent)
        return sent

    def room(self, given: Mapping[str, Json], name: str = "channel") -> Room:
        room = self.rooms.get(text_in(given, name))
        if room is None:
            raise refused("channel_not_found")
        return room

    def find(self, given: Mapping[str, Json], name: str = "ts") -> Sent:
        room, ts = self.room(given), text_in(given, name)
        for message in self.messages:
            if message.channel == room.id and message.ts == ts and not message.only_for:
                return message
        raise refused("message_not_found")

    def about(self, message: Sent, *, metadata: bool = False) -> Given:
        data: Given = {"type": "message", "user": message.user, "text": message.text, "ts": message.ts}
        roots = [root for root in self.messages if root.ts == message.thread_ts and root is not message]
        if message.thread_ts:
            data |= {"thread_ts": message.thread_ts}
            if roots:
                data |= {"parent_user_id": roots[0].user}
        if message.bot_id:
            data |= {"bot_id": message.bot_id, "app_id": APP}
        if message.file_ids:
            data |= {"files": [self.files[file] for file in message.file_ids]}
        if message.blocks:
            data |= {"blocks": message.blocks}
        if metadata and message.metadata:
            data |= {"metadata": message.metadata}
        return data | dict(message.more)

    # ---- messages ----

    def _place(self, given: Given) -> tuple[Room, str]:
        """Return the channel and thread of a post. Raises Refused if the bot may not post there.

        If the first message of the thread was deleted and has no replies, Slack posts to the channel without an error.

        Source: github.com/slack-go/slack/issues/1571.
        """
        room = self.room(given)
        for place in (room.id, f"{room.id}/{text_in(given, 'thread_ts')}"):
            if place in self.barred:
                raise refused(self.barred[place])
        if room.is_archived:
            raise refused("is_archived")
        if BOT not in room.members:
            raise refused("not_in_channel")
        thread_ts = text_in(given, "thread_ts")
        if thread_ts and not _TS.fullmatch(thread_ts):
            raise refused("invalid_thread_ts")
        return room, "" if (room.id, thread_ts) in self.deleted else thread_ts

    def _made(self, given: Given, only_for: str = "") -> Sent:
        room, thread_ts = self._place(given)
        blocks = check_blocks(given.get("blocks"))
        text = check_text(given, TEXT_CHARS_MAX, has_blocks=bool(blocks))
        metadata = check_metadata(given.get("metadata"))
        sent = Sent(self.stamp(), room.id, BOT, text, thread_ts, blocks, metadata, only_for=only_for, bot_id=BOT_ID)
        return self.keep(sent)

    def _post(self, given: Given) -> Mapping[str, Json]:
        sent = self._made(given)
        return {"channel": sent.channel, "ts": sent.ts, "message": self.about(sent)}

    def _post_ephemeral(self, given: Given) -> Mapping[str, Json]:
        if text_in(given, "user") not in self.room(given).members:
            raise refused("user_not_in_channel")
        return {"message_ts": self._made(given, text_in(given, "user")).ts}

    def _update(self, given: Given) -> Mapping[str, Json]:
        message = self.find(given)
        if message.user != BOT:
            raise refused("cant_update_message")
        if message.streaming:
            raise refused("streaming_state_conflict")
        if "blocks" in given:  # without `blocks`, the message keeps its blocks
            message.blocks = check_blocks(given["blocks"])
        message.text = check_text(given, UPDATE_CHARS_MAX, has_blocks=bool(message.blocks))
        if "metadata" in given:
            message.metadata = check_metadata(given["metadata"])
        message.edits += 1
        return {"channel": message.channel, "ts": message.ts, "text": message.text}

    def _delete(self, given: Given) -> Mapping[str, Json]:
        message = self.find(given)
        if message.user != BOT:
            raise refused("cant_delete_message")
        self.messages.remove(message)
        return {"channel": message.channel, "ts": message.ts}

    def _permalink(self, given: Given) -> Mapping[str, Json]:
        sent = self.find(given, "message_ts")
        return {"channel": sent.channel, "permalink": f"{self.address}/archives/{sent.channel}/p{sent.ts}"}

    def _start_stream(self, given: Given) -> Mapping[str, Json]:
        if not self.streaming_offered:
            raise refused("feature_not_enabled")
        room, thread_ts = self._place(given)
        if not text_in(given, "thread_ts"):
            raise refused("invalid_arguments")
        if room.kind != "im" and not (text_in(given, "recipient_user_id") and text_in(given, "recipient_team_id")):
            raise refused("missing_recipient_user_id")
        text = self._stream_text(given)
        sent = Sent(self.stamp(), room.id, BOT, text, thread_ts, streaming=True, streamed=True, bot_id=BOT_ID)
        self.keep(sent)
        return {"channel": sent.channel, "ts": sent.ts}

    def _append_stream(self, given: Given) -> Mapping[str, Json]:
        message = self._streaming(given)
        message.text += self._stream_text(given)
        return {"channel": message.channel, "ts": message.ts}

    def _stop_stream(self, given: Given) -> Mapping[str, Json]:
        message = self._streaming(given)
        message.text += self._stream_text(given)
        message.streaming = False
        return {"channel": message.channel, "ts": message.ts}

    def _streaming(self, given: Given) -> Sent:
        message = self.find(given)
        if not message.streaming:
            raise refused("message_not_in_streaming_state")
        return message

    def _stream_text(self, given: Given) -> str:
        chunks = given.get("chunks")
        chunks_given = [chunk for chunk in chunks if isinstance(chunk, dict)] if isinstance(chunks, list) else []
        if any(chunk.get("type") != "markdown_text" for chunk in chunks_given):
            raise refused("invalid_chunks")
        text = text_in(given, "markdown_text") + "".join(text_in(chunk, "text") for chunk in chunks_given)
        if len(text) > STREAM_CHARS_MAX:
            raise refused("msg_too_long")
        return text

    def _set_status(self, given: Given) -> Mapping[str, Json]:
        room, thread_ts = self.room(given, "channel_id"), text_in(given, "thread_ts")
        if not _TS.fullmatch(thread_ts):
            raise refused("invalid_arguments")
        self.statuses.append((room.id, thread_ts, text_in(given, "status")))
        return {}

    def _history(self, given: Given) -> Mapping[str, Json]:
        room = self.room(given)
        if "history" in self.scopes_missing:
            raise refused("missing_scope", needed="channels:history")
        return self._page(
            given, [message for message in self.messages if message.channel == room.id and not message.thread_ts][::-1]
        )

    def _replies(self, given: Given) -> Mapping[str, Json]:
        room, ts = self.room(given), text_in(given, "ts")
        if "history" in self.scopes_missing:
            raise refused("missing_scope", needed="channels:history")
        replies = [
            message for message in self.messages if message.channel == room.id and ts in (message.ts, message.thread_ts)
        ]
        if not replies:
            raise refused("thread_not_found")
        return self._page(given, replies)

    def _page(self, given: Given, messages: list[Sent]) -> Mapping[str, Json]:
        """Return a page of up to 999 messages that are newer than `oldest`."""
        oldest, limit = text_in(given, "oldest"), int(text_in(given, "limit") or 100)
        if not 1 <= limit <= 999:
            raise refused("invalid_limit")
        seen = [
            message
            for message in messages
            if not message.only_for and (not oldest or float(message.ts) > float(oldest))
        ]
        at = int(text_in(given, "cursor") or 0)
        page: list[Json] = []
        page.extend(
            self.about(message, metadata=is_true(given, "include_all_metadata")) for message in seen[at : at + limit]
        )
        more = at + limit < len(seen)
        return {
            "messages": page, "has_more": more,
            "response_metadata": {"next_cursor": str(at + limit) if more else ""},
        }  # fmt: skip

    # ---- channels and people ----

    def _shown(self, room: Room) -> Given:
        return {
            "id": room.id, "name": room.name, "is_channel": room.kind == "channel", "is_im": room.kind == "im",
            "is_private": room.kind == "private", "is_mpim": room.kind == "mpim", "is_archived": room.is_archived,
            "is_member": BOT in room.members and room.kind != "im",
        }  # fmt: skip

    def _user(self, given: Given) -> Given:
        user = self.users.get(text_in(given, "user"))
        if user is None:
            raise refused("user_not_found")
        return user

    def _create(self, given: Given) -> Mapping[str, Json]:
        name = text_in(given, "name")
        if not _NAME.fullmatch(name) or name != name.lower():
            raise refused("invalid_name_specials")
        if any(room.name == name for room in self.rooms.values()):
            raise refused("name_taken")
        kind = "private" if is_true(given, "is_private") else "channel"
        room = Room(f"C9{self.fresh():07d}", name, kind, [BOT])
        self.rooms[room.id] = room
        return {"channel": self._shown(room)}

    def _open(self, given: Given) -> Mapping[str, Json]:
        user = text_in(given, "users")
        if user not in self.users:
            raise refused("user_not_found")
        for room in self.rooms.values():
            if room.kind == "im" and user in room.members:
                return {"channel": self._shown(room)}
        room = Room(f"D9{self.fresh():07d}", "", "im", [user, BOT])
        self.rooms[room.id] = room
        return {"channel": self._shown(room)}

    def _invite(self, given: Given) -> Mapping[str, Json]:
        room, people = self.room(given), text_in(given, "users").split(",")
        if BOT in people:
            raise refused("cant_invite_self")
        if any(person not in self.users for person in people):
            raise refused("user_not_found")
        room.members.extend(person for person in people if person not in room.members)
        return {"channel": self._shown(room)}

    def _join(self, given: Given) -> Mapping[str, Json]:
        room = self.room(given)
        if room.kind != "channel":
            raise refused("method_not_supported_for_channel_type")
        room.members.append(BOT)
        return {"channel": self._shown(room)}

    def _leave(self, given: Given) -> Mapping[str, Json]:
        self.room(given).members.remove(BOT)
        return {}

    def _archive(self, given: Given) -> Mapping[str, Json]:
        self.room(given).is_archived = True
        return {}

    def _rename(self, given: Given) -> Mapping[str, Json]:
        self.room(given).name = text_in(given, "name")
        return {"channel": self._shown(self.room(given))}

    # ---- files ----

    def _upload_url(self, given: Given) -> Mapping[str, Json]:
        name, length = text_in(given, "filename"), text_in(given, "length")
        if not name or not length.isdecimal() or int(length) < 1:
            raise refused("invalid_arguments")
        file = self.new_file(name, int(length), BOT)
        return {"upload_url": f"{self.address}/upload/{file}", "file_id": file}

    def new_file(self, name: str, size: int, user: str) -> str:
        file = f"F{self.fresh():08d}"
        self.files[file] = {
            "id": file, "name": name, "title": name, "mimetype": "text/plain", "size": size, "user": user,
            "url_private": f"{self.address}/files/{file}", "url_private_download": f"{self.address}/files/{file}",
            "is_external": False, "shares": {},
        }  # fmt: skip
        return file

    def _publish(self, given: Given) -> Mapping[str, Json]:
        user = text_in(given, "user_id")
        view: Json = msgspec.json.decode(text_in(given, "view") or "null")  # the form field contains JSON
        if not isinstance(view, dict) or view.get("type") != "home" or not user:
            raise refused("invalid_arguments")
        self.homes[user] = check_blocks(view.get("blocks"))
        return {"view": {"id": f"V{self.fresh():08d}"}}

    def _complete_upload(self, given: Given) -> Mapping[str, Json]:
        room, thread_ts = self._place({**given, "channel": given.get("channel_id")})
        asked = given.get("files")
        ids = [text_in(given, "id") for given in asked if isinstance(given, dict)] if isinstance(asked, list) else []
        for file in ids:
            if file not in self.contents:
                raise refused("file_not_found")
            if len(self.contents[file]) != self.files[file]["size"]:
                raise refused("file_update_failed")
        comment = text_in(given, "initial_comment")
        sent = Sent(self.stamp(), room.id, BOT, comment, thread_ts, file_ids=tuple(ids), bot_id=BOT_ID)
        self.keep(sent)
        for file in ids:
            self.files[file]["shares"] = {"public": {room.id: [{"ts": sent.ts}]}}
        return {"files": [{"id": file} for file in ids]}

    def _file(self, given: Given) -> Given:
        file = self.files.get(text_in(given, "file"))
        if file is None:
            raise refused("file_not_found")
        return file
