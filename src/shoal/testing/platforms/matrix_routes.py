"""The HTTP routes of the fake homeserver's client-server API."""

import re
from collections.abc import Callable
from typing import TypeAlias

from shoal.testing.platforms.matrix_wire import Happened, Refusal, check_message, part_of, text_in
from shoal.testing.platforms.matrix_world import ADA, BOT, SERVER, MatrixWorld
from shoal.testing.platforms.wire import Given, Json

PAGE_MAX = 100
Query: TypeAlias = dict[str, str]
Handler: TypeAlias = Callable[[tuple[str, ...], Given, Query], Given]


class Routes:
    def __init__(self, world: MatrixWorld) -> None:
        self._world = world
        room = r"/v3/rooms/([^/]+)"
        self._table: tuple[tuple[re.Pattern[str], Handler], ...] = tuple(
            (re.compile(pattern), handler)
            for pattern, handler in (
                (r"GET /v3/account/whoami", self._whoami),
                (r"GET /v3/profile/([^/]+)", self._profile),
                (rf"PUT {room}/send/([^/]+)/([^/]+)", self._send),
                (rf"PUT {room}/redact/([^/]+)/([^/]+)", self._redact),
                (rf"PUT {room}/typing/([^/]+)", self._typing),
                (rf"GET {room}/joined_members", self._members),
                (rf"GET {room}/state/m\.room\.encryption", self._encryption),
                (rf"GET {room}/state/m\.room\.name", self._name),
                (rf"GET {room}/messages", self._messages),
                (rf"GET {room}/event/([^/]+)", self._event),
                (r"GET /v1/rooms/([^/]+)/relations/([^/]+)/m\.thread", self._thread),
                (rf"POST {room}/join", self._join),
                (r"POST /v3/join/([^/]+)", self._join),
                (rf"POST {room}/leave", self._leave),
                (r"POST /v3/createRoom", self._create),
                (r"POST /v3/keys/(upload|query|claim)", self._keys),
                (r"GET /v3/user/[^/]+/account_data/([^/]+)", self._data),
                (r"PUT /v3/user/[^/]+/account_data/([^/]+)", self._put_data),
            )
        )

    def answer(self, method: str, path: str, given: Given, query: Query) -> Given:
        for pattern, handler in self._table:
            match = pattern.fullmatch(f"{method} {path}")
            if match is not None:
                return handler(match.groups(), given, query)
        raise Refusal("M_UNRECOGNIZED", "Unrecognized request")

    def _whoami(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        return {"user_id": BOT, "device_id": "HARBOUR", "is_guest": False}

    def _profile(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        if parts[0] not in self._world.names:
            raise Refusal("M_NOT_FOUND", "Profile was not found")
        return {"displayname": self._world.names[parts[0]]}

    def _send(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.room(parts[0])
        if room.id in self._world.barred:  # Synapse's text for an insufficient power level
            raise Refusal("M_FORBIDDEN", self._world.barred[room.id])
        known = self._world.transactions.get(parts)
        if known is not None:
            return {"event_id": known}
        if parts[1] == "m.room.message":
            check_message(given)
        relation = part_of(given, "m.relates_to")
        if relation.get("rel_type") == "m.thread":
            root = self._world.event(room, text_in(relation, "event_id"))
            if self._world.thread_root(root):
                raise Refusal("M_INVALID_PARAM", "Cannot start threads from an event with a relation")
        if relation.get("rel_type") == "m.replace":
            # Homeservers store such an edit, and clients ignore it. The fake rejects it to reveal the mistake.
            edited = self._world.event(room, text_in(relation, "event_id"))
            reason = "The edit needs m.new_content and one of your own messages"
            if edited.sender != BOT or not part_of(given, "m.new_content"):
                raise Refusal("M_INVALID_PARAM", reason)
        event = self._world.happen(room, BOT, parts[1], given)
        self._world.transactions[parts] = event.event_id
        return {"event_id": event.event_id}

    def _redact(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.room(parts[0])
        redacted = self._world.event(room, parts[1])
        if redacted.sender != BOT:
            raise Refusal("M_FORBIDDEN", "You don't have permission to redact events")
        redacted.content = {}
        return {"event_id": self._world.happen(room, BOT, "m.room.redaction", {}, redacts=parts[1]).event_id}

    def _typing(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        self._world.room(parts[0])
        if parts[1] != BOT:
            raise Refusal("M_FORBIDDEN", "Cannot set another user's typing state")
        if not isinstance(given.get("typing"), bool):
            raise Refusal("M_BAD_JSON", "typing is missing")
        return {}

    def _members(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.room(parts[0])
        joined: Given = {user: {"display_name": self._world.names.get(user)} for user in room.joined()}
        return {"joined": joined}

    def _encryption(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        if not self._world.room(parts[0]).encrypted:
            raise Refusal("M_NOT_FOUND", "Event not found.")
        return {"algorithm": "m.megolm.v1.aes-sha2"}

    def _name(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        name = self._world.room(parts[0]).name
        if not name:
            raise Refusal("M_NOT_FOUND", "Event not found.")
        return {"name": name}

    def _messages(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.room(parts[0])
        before = int(query["from"][1:]) if "from" in query else self._world.position + 1
        after = int(query["to"][1:]) if "to" in query else 0
        events = [event for event in room.events if after < event.position < before]
        return self._page(events, min(PAGE_MAX, int(query.get("limit", "10"))), "end")

    def _thread(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.room(parts[0])
        before = int(query["from"][1:]) if "from" in query else self._world.position + 1
        events = [
            event for event in room.events if self._world.thread_root(event) == parts[1] and event.position < before
        ]
        return self._page(events, min(PAGE_MAX, int(query.get("limit", "5"))), "next_batch")

    def _page(self, events: list[Happened], limit: int, more: str) -> Given:
        page = events[-limit:][::-1]
        chunk: list[Json] = [event.told() for event in page]
        return {"chunk": chunk, **({more: f"p{page[-1].position}"} if len(page) < len(events) else {})}

    def _event(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        return self._world.event(self._world.room(parts[0]), parts[1]).told()

    def _join(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.rooms.get(parts[0])
        if room is None or not (room.public or room.members.get(BOT) in ("invite", "join")):
            raise Refusal("M_FORBIDDEN", "You are not invited to this room.")
        self._world.move(room, BOT, "join", BOT)
        return {"room_id": room.id}

    def _leave(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.rooms.get(parts[0])
        if room is None or room.members.get(BOT) not in ("invite", "join"):
            raise Refusal("M_FORBIDDEN", "You are not in this room.")
        self._world.move(room, BOT, "leave", BOT)
        return {}

    def _create(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        room = self._world.add_room(BOT, name=text_in(given, "name"))
        invited = given.get("invite")
        for user in invited if isinstance(invited, list) else ():
            self._world.move(room, str(user), "invite", BOT)
            if user == ADA:  # ada accepts immediately
                self._world.move(room, ADA, "join", ADA)
        return {"room_id": room.id}

    def _data(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        if parts[0] not in self._world.account_data:
            raise Refusal("M_NOT_FOUND", "Account data not found")
        return self._world.account_data[parts[0]]

    def _put_data(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        self._world.account_data[parts[0]] = given
        return {}

    def _keys(self, parts: tuple[str, ...], given: Given, query: Query) -> Given:
        if parts[0] == "upload":
            return {"one_time_key_counts": {"signed_curve25519": 50}}
        return {"device_keys" if parts[0] == "query" else "one_time_keys": {}, "failures": {}}

    def upload(self, name: str, content: bytes) -> Given:
        media = self._world.fresh("m")
        self._world.files[media] = (name, content)
        return {"content_uri": f"mxc://{SERVER}/{media}"}
