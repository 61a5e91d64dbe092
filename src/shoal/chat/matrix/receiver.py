"""Receives for one account: syncs from where it stopped, fills what a sync leaves out, and answers invitations."""

import logging

import msgspec

from shoal.chat.account import ChatAccount
from shoal.chat.matrix.api import MatrixApi, Refused, path_of
from shoal.chat.matrix.inbound import Event, JoinedRoom, Me, Place, Synced, unseen
from shoal.chat.matrix.intake import Intake
from shoal.chat.matrix.rooms import Rooms
from shoal.domain.clock import Clock
from shoal.domain.errors import PlatformError
from shoal.domain.foreign import UNREADABLE
from shoal.domain.messages import Author, Prompt
from shoal.domain.ports import InboxPort
from shoal.domain.store import Settings

log = logging.getLogger(__name__)

POLL_SECONDS = 25
"""How long the homeserver holds a sync open when there is nothing."""
TIMELINE_MAX = 50
MISSED_A_ROOM_MAX = 500
"""How many messages of a room are read that came while nobody listened; older ones are left."""
PAGE = 100
_TYPES = (
    "m.room.message", "m.room.encrypted", "m.room.encryption", "m.room.redaction", "m.room.member", "m.reaction",
)  # fmt: skip
_EVENTS = {"types": _TYPES, "limit": TIMELINE_MAX}
_NONE = {"types": ()}
FILTER = msgspec.json.encode(
    {
        "presence": _NONE,
        "account_data": _NONE,
        "room": {
            "timeline": _EVENTS, "ephemeral": _NONE, "account_data": _NONE,
            "state": {"types": ("m.room.member", "m.room.encryption")},
        },
    }
).decode()  # fmt: skip


class _Page(msgspec.Struct, frozen=True):
    chunk: tuple[Event, ...] = ()
    end: str = ""


class _Profile(msgspec.Struct, frozen=True):
    displayname: str | None = None


class Receiver:
    """One account's ears."""

    def __init__(
        self, account: ChatAccount, api: MatrixApi, rooms: Rooms, intake: Intake, store: Settings, clock: Clock
    ) -> None:
        self._platform = account.platform
        self._api = api
        self._rooms = rooms
        self._intake = intake
        self._store = store
        self._clock = clock
        self._new: set[str] = set()
        self._account = account

    async def run(self, inbox: InboxPort) -> None:
        """Receive until cancelled; reconnect with backoff by itself."""
        await self._account.keep_connected(lambda: self._stay(inbox))

    async def _stay(self, inbox: InboxPort) -> None:
        try:
            await self._receive(inbox)
        finally:
            self._account.connected.clear()

    async def _receive(self, inbox: InboxPort) -> None:
        me = await self._me()
        scope = f"matrix:{self._platform}"
        since = await self._store.get(scope, "since") or ""
        begun = bool(since)
        log.info("connected", extra={"platform": self._platform, "bot": me.user_id})
        waits = False
        while True:
            raw, synced = await self._sync(since, POLL_SECONDS if waits else 0)
            self._account.works()
            waits = True
            await self._keys(raw)
            for room, invited in synced.rooms.invite.items():
                await self._invited(room, invited.invite_state.events, me, inbox)
            for room, joined in synced.rooms.join.items() if begun else ():
                await self._joined(room, joined, since, me, inbox)
            if synced.next_batch != since:
                since = synced.next_batch
                await self._store.put(scope, "since", since)
            begun = True
            self._account.connected.set()

    async def _keys(self, raw: bytes) -> None:
        """What a sync tells of keys; where that fails for good, plain rooms go on all the same."""
        try:
            await self._rooms.sealing.take(raw)
        except Refused as error:
            log.warning("keys could not be exchanged: %s", error, extra={"platform": self._platform})

    async def _me(self) -> Me:
        user = (await self._api.session()).user_id
        try:
            shown = (await self._api.call("GET", path_of("profile", user), _Profile)).displayname or ""
        except Refused:  # an account without a profile
            shown = ""
        return Me(user, shown)

    async def _sync(self, since: str, seconds: int) -> tuple[bytes, Synced]:
        query = {"timeout": str(seconds * 1000), "filter": FILTER, **({"since": since} if since else {})}
        raw = await self._api.call("GET", path_of("sync"), msgspec.Raw, query=query, seconds=POLL_SECONDS + 35)
        try:
            return bytes(raw), msgspec.json.decode(bytes(raw), type=Synced)
        except UNREADABLE as error:
            raise PlatformError(f"The homeserver's sync has another form than is known: {error}") from error

    async def _joined(self, room: str, joined: JoinedRoom, since: str, me: Me, inbox: InboxPort) -> None:
        """The events of a room in their order; those that a sync left out are read before."""
        events = joined.timeline.events
        is_new = room in self._new or len(unseen(events, me.user_id)) < len(events)
        if joined.timeline.limited and joined.timeline.prev_batch:
            events = (*await self._left_out(room, joined.timeline.prev_batch, "" if is_new else since, me), *events)
        for event in events:
            self._rooms.note(room, event)
        for event in unseen(events, me.user_id):
            await self._intake.event(room, event, me, inbox)
        self._new.discard(room)

    async def _left_out(self, room: str, start: str, since: str, me: Me) -> tuple[Event, ...]:
        """What came after `since` and before `start`, oldest first; no further back than the bot's own invitation."""
        found: list[Event] = []
        while start and len(found) < MISSED_A_ROOM_MAX:
            query = {"dir": "b", "from": start, "limit": str(PAGE), **({"to": since} if since else {})}
            page = await self._api.call("GET", path_of("rooms", room, "messages"), _Page, query=query)
            found += page.chunk
            if not page.chunk or len(unseen(page.chunk[::-1], me.user_id)) < len(page.chunk):
                break
            start = page.end
        return tuple(found[::-1])

    async def _invited(self, room: str, events: tuple[Event, ...], me: Me, inbox: InboxPort) -> None:
        """Join where somebody asks who may speak there; decline elsewhere."""
        asked = next((one for one in events if one.type == "m.room.member" and one.state_key == me.user_id), None)
        accepted = asked is not None and await inbox.admits(self._request(room, asked))
        extra = {"platform": self._platform, "channel": room, "user": asked.sender if asked is not None else ""}
        try:
            await self._api.call("POST", path_of("rooms", room, "join" if accepted else "leave"), msgspec.Raw, {})
            if accepted:
                self._new.add(room)  # all since the invitation is for us, also what came before the last sync
            log.info("an invitation was %s", "accepted" if accepted else "declined", extra=extra)
        except Refused as error:
            log.warning("an invitation could not be answered: %s", error, extra=extra)

    def _request(self, room: str, invitation: Event) -> Prompt:
        """What an invitation would be as a message, so that the same rules decide on it."""
        thread = Place(room).thread(self._platform)
        return Prompt(thread, f"invitation:{room}", "", Author(invitation.sender, trusted=False), self._clock.now())
