"""The state of the fake homeserver: rooms, people, and one stream of events for sync."""

import msgspec

from shoal.kernel.clock import Clock
from shoal.testing.platforms.matrix_wire import Happened, Refusal, part_of, text_in
from shoal.testing.platforms.wire import Given, Json

SERVER = "harbour.example"
BOT = f"@shoal:{SERVER}"
ADA = f"@ada:{SERVER}"


class Room(msgspec.Struct):
    id: str
    name: str = ""
    members: dict[str, str] = {}
    encrypted: bool = False
    locked: bool = False
    public: bool = False
    events: list[Happened] = []

    def joined(self) -> list[str]:
        return [user for user, membership in self.members.items() if membership == "join"]


class MatrixWorld:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.position = 0
        self.rooms: dict[str, Room] = {}
        self.names: dict[str, str] = {BOT: "Shoal", ADA: "Ada"}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.account_data: dict[str, Given] = {}
        self.barred: dict[str, str] = {}
        self.to_device: list[tuple[int, Given]] = []
        self.transactions: dict[tuple[str, ...], str] = {}
        self._count = 0

    def fresh(self, sign: str) -> str:
        self._count += 1
        return f"{sign}{self._count:04}harbour"

    def add_room(self, *members: str, name: str = "", encrypted: bool = False) -> Room:
        room = Room(f"{self.fresh('!')}:{SERVER}", name, encrypted=encrypted)
        self.rooms[room.id] = room
        for member in members:
            self.move(room, member, "join", member)
        return room

    def move(self, room: Room, user: str, membership: str, sender: str, *, direct: bool = False) -> None:
        """Change a person's membership. If `direct` is set, the invitation is for a direct chat."""
        room.members[user] = membership
        content: Given = {"membership": membership, **({"is_direct": True} if direct else {})}
        self.happen(room, sender, "m.room.member", content, state_key=user)

    def happen(
        self, room: Room, sender: str, kind: str, content: Given, *, state_key: str | None = None, redacts: str = ""
    ) -> Happened:
        """Create an event, deliver it, and return it."""
        event = self.written(room, sender, kind, content, state_key=state_key, redacts=redacts)
        self.tell(event)
        return event

    def written(
        self, room: Room, sender: str, kind: str, content: Given, *, state_key: str | None = None, redacts: str = ""
    ) -> Happened:
        """Create an event without delivering it."""
        at = int(self.clock.now().timestamp() * 1000)
        return Happened(0, self.fresh("$"), room.id, sender, kind, content, at, state_key=state_key, redacts=redacts)

    def tell(self, event: Happened) -> None:
        """Append an event to the stream. Call it twice to repeat an event, as homeservers do after a failure."""
        self.position += 1
        self.rooms[event.room].events.append(msgspec.structs.replace(event, position=self.position))

    def room(self, room_id: str, user: str = BOT) -> Room:
        room = self.rooms.get(room_id)
        if room is None or room.locked or room.members.get(user) != "join":
            raise Refusal("M_FORBIDDEN", f"User {user} not in room {room_id}")
        return room

    def event(self, room: Room, event_id: str) -> Happened:
        for event in room.events:
            if event.event_id == event_id:
                return event
        raise Refusal("M_NOT_FOUND", "Event not found.")

    # ---- sync ----

    def news(self, since: int, limit: int) -> Given | None:
        """Return the sync response for all events after the position `since`, or None if there are no new events."""
        joined: Given = {}
        invited: Given = {}
        for room in self.rooms.values():
            membership = room.members.get(BOT)
            new = [event for event in room.events if event.position > since]
            if membership == "join" and new:
                came = any(event.state_key == BOT and event.content.get("membership") == "join" for event in new)
                joined[room.id] = self._timeline(room, room.events if came else new, limit)
            elif membership == "invite" and any(event.state_key == BOT for event in new):
                state: list[Json] = [event.told() for event in room.events if event.state_key == BOT]
                invited[room.id] = {"invite_state": {"events": state}}
        if not joined and not invited and not any(position > since for position, _ in self.to_device):
            return None
        return {"join": joined, "invite": invited}

    def _timeline(self, room: Room, new: list[Happened], limit: int) -> Given:
        timeline = new[-limit:]
        first = timeline[0].position if timeline else self.position + 1
        events: list[Json] = [event.told() for event in timeline]
        return {
            "timeline": {"events": events, "limited": len(timeline) < len(new), "prev_batch": f"p{first}"},
            "state": {"events": []},
            "summary": {"m.joined_member_count": len(room.joined())},
        }

    # ---- what people see ----

    def thread_root(self, event: Happened) -> str:
        """Return the id of the first message in the event's thread, or an empty string."""
        relation = event.relation
        return text_in(relation, "event_id") if relation.get("rel_type") == "m.thread" else ""

    def latest(self, event: Happened) -> tuple[Given, int]:
        changes = [
            past.content for past in self.rooms[event.room].events
            if past.relation.get("rel_type") == "m.replace" and past.relation.get("event_id") == event.event_id
        ]  # fmt: skip
        return (part_of(changes[-1], "m.new_content") if changes else event.content), len(changes)
