"""What the model gets to see: the system text settled at the turn's start, the transcript, the tools."""

from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from shoal.domain.agents import AgentSpec
from shoal.domain.clock import Clock
from shoal.domain.events import TurnStarted
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.domain.messages import ModelRequest, Prompt
from shoal.domain.permissions import Asker
from shoal.domain.ports import Mount, Route
from shoal.permissions.rules import Profile
from shoal.tools.executor import CallContext, Executor
from shoal.turn.prompt import PromptBuilder
from shoal.turn.sections import SystemPrompt, decode_prompt, encode_prompt, settle
from shoal.turn.session import Session
from shoal.turn.skills import skill_mounts, skill_roots
from shoal.turn.volatile import volatile

StatusLines = Callable[[ThreadId, AgentSpec], tuple[str, ...]]
Profiles = Callable[[AgentSpec, Asker], Profile]


class Opening(msgspec.Struct, frozen=True):
    """What a turn opens with."""

    started: TurnStarted
    prompts: tuple[tuple[str, bytes], ...]


class ContextBuilder:
    """Builds requests and call contexts. `others` tells what the agent's other threads do."""

    def __init__(
        self,
        home: Home,
        executor: Executor,
        prompts: PromptBuilder,
        profiles: Profiles,
        clock: Clock,
        others: StatusLines,
    ) -> None:
        self._home = home
        self._executor = executor
        self._prompts = prompts
        self._profiles = profiles
        self._clock = clock
        self._others = others
        self._known: WeakValueDictionary[str, SystemPrompt] = WeakValueDictionary()

    async def open(self, session: Session, prompt: Prompt) -> Opening:
        """Settle the system text of the turn that `prompt` starts and what is told beside it."""
        agent = session.who
        now = self._present(session)
        settled = settle(await self._stored(session, session.base), await self._stored(session, session.told), now)
        text = volatile(self._clock.now(), others=self._others(session.thread, agent), memory_changes=settled.changes)
        new = {one.digest: one for one in (settled.system, settled.told) if one.digest not in self._known}
        self._known.update(new)
        session.system = settled.system
        started = TurnStarted(
            agent=agent.name,
            model=prompt.model or agent.model,
            context=text,
            history=prompt.history,
            system=settled.system.digest,
            told=settled.told.digest,
        )
        return Opening(started, tuple((digest, encode_prompt(one)) for digest, one in new.items()))

    async def resume(self, session: Session) -> None:
        """Find the system text of a turn that another process opened."""
        session.system = await self._stored(session, session.base) or self._present(session)

    def request(self, session: Session, route: Route, *, tools: bool) -> ModelRequest:
        """The next request of the open turn."""
        assert session.system is not None, "the turn's system text is not settled"
        agent = session.who
        specs = self._executor.specs(agent, self._profile(session))
        messages = session.transcript.messages()
        if not session.open.history:
            messages = session.transcript.messages_of(session.turn)
        return ModelRequest(
            model=route.model,
            system=session.system.text,
            messages=messages,
            tools=specs,
            max_output_tokens=min(agent.max_output_tokens, route.max_output_tokens or agent.max_output_tokens),
            temperature=agent.temperature,
            cache_key=session.thread,
            tool_choice="auto" if tools else "none",
        )

    def calls(self, session: Session) -> CallContext:
        """For whom and where the open turn's calls run."""
        agent = session.who
        mounts = self.mounts(agent, session.thread)
        for mount in mounts:  # made when first needed: most threads never use a tool
            if not mount.host.is_dir():
                mount.host.mkdir(parents=True, exist_ok=True)
        return CallContext(
            thread=session.thread,
            turn=session.turn,
            asker=session.asker,
            agent=agent,
            mounts=mounts,
            profile=self._profile(session),
            taint=session.taint,
        )

    def mounts(self, agent: AgentSpec, thread: ThreadId) -> tuple[Mount, ...]:
        """What the agent's commands and file tools reach, first the workspace."""
        return (
            Mount(agent.workspace, "/workspace", writable=True),
            Mount(self._home.scratch(thread), "/scratch", writable=True),
            Mount(self._home.attachments(thread), "/attachments"),
            Mount(agent.home / "docs", "/docs"),
            *skill_mounts(skill_roots(self._home, agent.home, thread)),
        )

    def _present(self, session: Session) -> SystemPrompt:
        agent = session.who
        mounts = self.mounts(agent, session.thread)

        def inside(path: Path) -> str:
            return self._executor.sandbox.inside(path, mounts)

        specs = self._executor.specs(agent, self._profile(session))
        return self._prompts.system(agent, session.thread, specs, inside)

    def _profile(self, session: Session) -> Profile:
        return self._profiles(session.who, session.asker)

    async def _stored(self, session: Session, digest: str) -> SystemPrompt | None:
        if not digest:
            return None
        found = self._known.get(digest)
        if found is None:
            body = await session.journal.prompt(digest)
            if body is None:
                return None
            found = decode_prompt(body)
            self._known[digest] = found
        return found
