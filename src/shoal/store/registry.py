"""The agents' rows: who there is, who answers in which channel, and which threads are at work."""

from shoal.domain.clock import Clock, from_micros, to_micros
from shoal.domain.events import UserSaid, decode_data
from shoal.domain.foreign import UNREADABLE
from shoal.domain.ids import ThreadId, TurnId
from shoal.domain.registry import AgentRow, Around, Binding, Work, servers_scope
from shoal.store.processes import process_of
from shoal.store.rows import moment
from shoal.store.script import Driver, Row, Script, Value, number, query, text
from shoal.store.search import first_after

ASKED_CHARS_MAX = 200
CHOICES = "place"
"""The scope of the settings that hold them."""
CHOICES_MAX = 10_000


class RegistryView:
    """Implements `domain.registry.Registry` over either dialect."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock

    async def put(self, name: str, digest: str) -> bool:
        """Note that an agent is there, with this configuration."""
        return await self._driver.write(_put(name, digest, to_micros(self._clock.now())))

    async def retire(self, name: str) -> list[Binding]:
        """Note that an agent is destroyed and remove its bindings."""
        return await self._driver.write(_retire(name, to_micros(self._clock.now())))

    async def all(self) -> list[AgentRow]:
        """Every agent there ever was, by name."""
        return [_agent(row) for row in await self._driver.read(query("agents_all"))]

    async def bind(self, binding: Binding) -> None:
        """Bind a channel; an earlier binding of it is replaced."""
        await self._driver.write(
            query(
                "binding_put",
                platform=binding.platform,
                channel=binding.channel,
                agent=binding.agent,
                bound_by=binding.bound_by,
                made=int(binding.made),
                now=to_micros(binding.created_at),
            )
        )

    async def unbind(self, platform: str, channel: str) -> bool:
        """Remove a channel's binding; False when there is none."""
        return bool(await self._driver.write(query("binding_delete", platform=platform, channel=channel)))

    async def bindings(self, limit: int = 10_000) -> list[Binding]:
        """The bindings, by platform and channel."""
        return [_binding(row) for row in await self._driver.read(query("bindings_all", limit=limit))]

    async def at_work(self, agent: str = "", limit: int = 100, *, within: str = "") -> list[Work]:
        """The threads that have something to do, the longest at work first."""
        script = query("threads_at_work", agent=agent, limit=limit, low=within, high=first_after(within))
        return [_work(row) for row in await self._driver.read(script)]

    async def around(self, agent: str, limit: int, *, within: str = "") -> Around:
        """What the agent does, in one look."""
        return await self._driver.read(_around(agent, limit, within))

    async def choices(self) -> dict[str, str]:
        """What was chosen for places."""
        rows = await self._driver.read(query("settings_of", scope=CHOICES, after="", limit=CHOICES_MAX))
        return {text(row[0]): text(row[1]) for row in rows}

    async def server_of(self, platform: str, channel: str) -> str:
        """The server that a channel belongs to."""
        rows = await self._driver.read(query("setting_get", scope=servers_scope(platform), key=channel))
        return text(rows[0][0]) if rows else ""

    async def choose(self, place: str, value: str) -> None:
        """Set a place's choices; an empty value forgets them."""
        if value:
            await self._driver.write(query("setting_put", scope=CHOICES, key=place, value=value))
        else:
            await self._driver.write(query("setting_delete", scope=CHOICES, key=place))


def _around(agent: str, limit: int, within: str) -> Script[Around]:
    low, high = within, first_after(within)
    works = yield from query("threads_at_work", agent=agent, limit=limit, low=low, high=high)
    processes = yield from query("processes_running", agent=agent, limit=limit, low=low, high=high)
    return Around([_work(row) for row in works], [process_of(row) for row in processes])


def _put(name: str, digest: str, now: int) -> Script[bool]:
    found = yield from query("agent_lock", agent=name)
    yield from query("agent_put", agent=name, digest=digest, now=now)
    return not found or text(found[0][0]) != "active"


def _retire(name: str, now: int) -> Script[list[Binding]]:
    yield from query("agent_lock", agent=name)
    yield from query("agent_retire", agent=name, now=now)
    rows = yield from query("bindings_drop", agent=name)
    return sorted((_binding(row) for row in rows), key=lambda one: one.place)


def _agent(row: Row) -> AgentRow:
    name, state, digest, created_at, changed_at = row
    return AgentRow(
        text(name),
        text(state),  # pyright: ignore[reportArgumentType]  the column holds only these words
        text(digest),
        from_micros(number(created_at)),
        from_micros(number(changed_at)),
    )


def _binding(row: Row) -> Binding:
    platform, channel, agent, bound_by, made, created_at = row
    return Binding(
        text(platform), text(channel), text(agent), text(bound_by), from_micros(number(created_at)), bool(made)
    )


def _work(row: Row) -> Work:
    thread, agent, turn, parent, said, since, steps, questions, queued = row
    is_open = bool(turn)
    asked = _asked(said) if is_open else None
    return Work(
        ThreadId(text(thread)),
        text(agent),
        TurnId(text(turn)),
        text(parent),
        asked.text[:ASKED_CHARS_MAX] if asked is not None else "",
        moment(since) if is_open else None,
        number(steps),
        number(questions),
        number(queued),
        asked is not None and _is_trusted(asked),
    )


def _asked(said: Value) -> UserSaid | None:
    try:
        data = decode_data(UserSaid.type, text(said)) if said is not None else None
    except (*UNREADABLE, KeyError):
        return None
    return data if isinstance(data, UserSaid) else None


def _is_trusted(asked: UserSaid) -> bool:
    """Whether somebody trusted wrote it, and nothing of it comes from outside."""
    is_tainted = asked.tainted_by or (asked.caller is not None and asked.caller.tainted_by)
    return asked.author.trusted and not is_tainted
