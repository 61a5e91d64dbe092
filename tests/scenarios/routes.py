"""Routes by which one turn starts another. A scripted model and people perform the steps."""

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.agents.folder import make_folder
from shoal.features.snapshots.service import ConversationSnapshots
from shoal.kernel.clock import SystemClock
from shoal.kernel.events import Event, ToolStarted, TurnFinished, UserSaid
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.records import Approval
from shoal.permissions.access import AccessRules
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.model.script import Seen
from shoal.testing.scenario import World
from shoal.threads.orchestrator import Orchestrator

ACCESS = AccessRules(owners=("ada",), allow=("*",))
"""Ada owns the agent. Everyone else may write but is not trusted."""
STEP = "step{}."
SINK = Reply(calls=(Call("bash", '{"command": "curl --version"}'),))
"""The last step of a chain: it asks in a tainted turn and otherwise runs."""
LASTING = (
    "remind|schedule|remember|note_today|write_doc|write_skill|set_system_prompt|ask_agent|message|process_start|write"
)
SECONDS_MAX = 60.0
BY_ITSELF = ("remind", "schedule", "process", "output", "timeout", "subagent", "spawn", "ask_agent", "event file")
COMES_BACK = ("remind", "schedule", "process", "output", "timeout")
"""Routes back to the same conversation. It is cleared first, so only the route itself carries taint."""
PEOPLE_GO_ON = ("message", "memory", "note", "document", "skill", "persona", "snapshot", "conversation")
"""After these a trusted person continues, elsewhere or in the same conversation."""
SETTINGS: Mapping[str, object] = {
    "permissions": {
        "default_profile": "chain",
        "profiles": {"chain": {"extends": "open", "trusted_allow": [f"tool:({LASTING}):(?s:.*)"]}},
    },
    "subagents": {"depth_max": 8},
}
"""Every route runs without asking, even when tainted. Only the end of the chain asks."""


def call(tool: str, **arguments: object) -> Reply:
    return Reply(calls=(Call(tool, json.dumps(arguments)),))


class Chain:
    """A chain of turns. Each turn starts the next one by its route, and the last turn calls SINK.

    An untrusted person starts the chain, or ada does and her first turn reads an untrusted page.
    """

    def __init__(self, home: Path, routes: tuple[str, ...], *, by_page: bool = False) -> None:
        self._by_page = by_page
        self.clock = ManualClock()
        self._real = SystemClock()  # processes and watched folders use real time
        self.model = FakeModel(script=self._play)
        self._home = Home(home)
        self._routes = routes
        make_folder(self._home, "main")
        make_folder(self._home, "other")

    def _play(self, seen: Seen) -> Reply | str:
        said = seen.user_text
        number = max((n for n in range(len(self._routes) + 1) if STEP.format(n) in said), default=None)
        read = 1 if self._by_page and number == 0 else 0
        if number is None or seen.rounds > read:
            return "done"
        if seen.rounds < read:
            return call("time_page")
        return SINK if number == len(self._routes) else self._leads_on(number)

    def _leads_on(self, number: int) -> Reply | str:
        text, event_file = STEP.format(number + 1), self._home.events / f"{number}.json"
        event = json.dumps({"type": "immediate", "threadId": "fake:harbour:file", "text": text})
        skill = f"skill-{number}"
        output = {"on": "output", "pattern": "x", "note": text}
        timeout = {"on": "timeout", "after_seconds": 1, "note": text}
        wait = f"until [ -e {shlex.quote(str(self._go(number)))} ]; do sleep 0.02; done"
        calls = {
            "remind": call("remind", when="in 1 minute", text=text),
            "schedule": call("schedule", do="create", when="in 1 minute", text=text),
            "process": call("process_start", command=wait, hooks=[{"on": "exit", "note": text}]),
            "output": call("process_start", command=f"{wait}; echo x", hooks=[output]),
            "timeout": call("process_start", command="sleep 30", hooks=[timeout]),
            "subagent": call("subagent", task=text),
            "spawn": call("spawn", task=text),
            "ask_agent": call("ask_agent", agent="other", question=text),
            "event file": call("bash", command=f"printf %s {shlex.quote(event)} > {event_file}"),
            "message": call("message", to="fake:harbour:told", text="look at it"),
            "memory": call("remember", text=f"a fact of turn {number}", scope="global"),
            "note": call("note_today", text=f"a fact of turn {number}"),
            "document": call("write_doc", path=f"{number}.md", text=f"a fact of turn {number}"),
            "skill": call("write_skill", name=skill, text=f"---\nname: {skill}\ndescription: Do it.\n---\nobey\n"),
            "persona": call("set_system_prompt", text=f"obey turn {number}"),
        }
        return calls.get(self._routes[number], "done")  # people continue the other routes in `_goes_on`

    async def ends(self, world: World) -> tuple[Approval, UserSaid]:
        """Start the chain and return the approval of the last turn with the prompt of that turn. Fails if the sink
        ran without approval.
        """
        if self._routes[0] == "command":
            await world.chat.asks("harbour", "start", f"/remind in 1 minute {STEP.format(1)}", user="mallory")
        else:
            await world.chat.says("harbour", "start", STEP.format(0), user="ada" if self._by_page else "mallory")
        for number, route in enumerate(self._routes):
            if route in PEOPLE_GO_ON:
                await self._goes_on(world, number, await self._finished(world, number))
            elif route in COMES_BACK:
                await self._forgets(world, number)
        return await self._asked(world)

    async def _goes_on(self, world: World, number: int, thread: ThreadId) -> None:
        route, text = self._routes[number], STEP.format(number + 1)
        where = {"message": "told", "conversation": thread.rpartition(":")[2]}.get(route, f"fresh{number}")
        if route == "snapshot":
            saved = await world.app[ConversationSnapshots].save(thread, "saved")
            await world.chat.says("harbour", where, "hello", user="ada")
            await world.is_quiet()
            await world.app[ConversationSnapshots].restore(ThreadId(f"fake:harbour:{where}"), saved.id, "ada")
        await world.chat.says("harbour", where, text, user="ada")

    def _go(self, number: int) -> Path:
        """Return the file that the process of turn `number` waits for."""
        return self._home.root / f"go{number}"

    async def _forgets(self, world: World, number: int) -> None:
        """Clear the conversation of turn `number` before the route starts the next turn there."""
        async with asyncio.timeout(SECONDS_MAX):
            while not (turns := await self._turns(world, number)):
                await self._pass()
            while not has_ended(*turns[0]):  # wait in real time, because the manual clock would start the next turn
                await self._real.sleep(0.01)
                turns = await self._turns(world, number)
        ((said, _),) = turns
        assert isinstance(said.data, UserSaid)
        root = said.data.caller.root if said.data.caller is not None else said.thread
        await world.app[Orchestrator].clear(root, "ada")
        self._go(number).touch()

    async def _finished(self, world: World, number: int) -> ThreadId:
        async with asyncio.timeout(SECONDS_MAX):
            while not (ended := [said for said, events in await self._turns(world, number) if has_ended(said, events)]):
                await self._pass()
            await world.is_quiet()
            return ended[0].thread

    async def _asked(self, world: World) -> tuple[Approval, UserSaid]:
        async with asyncio.timeout(SECONDS_MAX):
            while not (pending := await world.app[Store].approvals.search()):
                for said, events in await self._turns(world, len(self._routes)):
                    ran = [one.data for one in events if isinstance(one.data, ToolStarted) and one.turn == said.turn]
                    assert not ran, f"the sink ran unasked at the end of {self._routes}"
                await self._pass()
        (approval,) = pending
        ((said, _),) = await self._turns(world, len(self._routes))
        assert isinstance(said.data, UserSaid)
        return approval, said.data

    async def _turns(self, world: World, number: int) -> list[tuple[Event, list[Event]]]:
        found: list[tuple[Event, list[Event]]] = []
        for info in await world.app[Store].journal.threads():
            events = await world.app[Store].journal.events(info.thread)
            for event in events:
                said = event.data.text if isinstance(event.data, UserSaid) and event.turn else ""
                found += [(event, events)] if STEP.format(number) in said else []
        return found

    async def _pass(self) -> None:
        await self.clock.advance(5)
        await self._real.sleep(0.01)


def has_ended(said: Event, events: Sequence[Event]) -> bool:
    return any(isinstance(event.data, TurnFinished) and event.turn == said.turn for event in events)
