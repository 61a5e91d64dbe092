"""Run chat commands and return their answers.

`CommandRouter` runs all commands of this process. `AgentCommands` implements /agent and /settings. The
specifications of built-in commands are in kernel/commands.py. Features and packages register their commands with
`add`.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from shoal.agents.folder import KEYS
from shoal.agents.lifecycle import AgentLifecycle, DoomedAgent, choices_in, key_named
from shoal.agents.registry import AgentRegistry, ChannelChoices, place_of
from shoal.agents.versions import AgentVersions
from shoal.kernel import lazy_re
from shoal.kernel.agents import HEARD, AgentSpec, Work, describe_work
from shoal.kernel.clock import Clock, to_micros
from shoal.kernel.commands import Answer, AnswerInChannel, ChatCommand, CommandRequest, CommandSpec, CommandTable
from shoal.kernel.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    ShoalError,
    StoreError,
    system_words,
)
from shoal.kernel.ids import OWN_PLATFORMS, WHOLE_CHANNEL, CardId, ThreadId, channel_of, thread_address
from shoal.kernel.messages import Abort, Prompt, Retry, Steer
from shoal.kernel.permissions import Asker
from shoal.kernel.phrases import counted, duration_text, short_line
from shoal.kernel.ports import ONCE
from shoal.kernel.records import Approval
from shoal.kernel.zones import local_time, zone_named
from shoal.permissions.access import Links
from shoal.store.cards import SHORT_ID_CHARS
from shoal.store.store import Store
from shoal.threads.always import AlwaysAllow
from shoal.threads.forks import Forks
from shoal.threads.orchestrator import CHOOSES_NO_MODEL, GONE, Orchestrator
from shoal.threads.scope import AUDIENCE
from shoal.threads.thread_numbers import ThreadNumbers
from shoal.threads.timezones import TimeZones
from shoal.threads.whereabouts import whereabouts
from shoal.threads.written_decisions import WrittenDecision, parse_answer
from shoal.turn.activity import Activity
from shoal.turn.spending import spent_today

log = logging.getLogger(__name__)

AGENTS_LISTED_MAX = 40
LINES_MAX = 20
THREADS_READ_MAX = 500
CODE_CHARS = 6
"""Length of the code that confirms the deletion of an agent."""

WELCOMES = (
    "Hello, I am {}. Write to me as you would to a person; you can also send files, pictures and voice messages.\n"
    "I ask before I do anything that my owner has not allowed: press a button, or answer `yes` or `no`.\n"
    "`/help` lists the commands; `/new` begins a new conversation."
)
NOTHING_SAID = "This conversation is empty."
NEW_HERE = "Every message to me in this channel begins a new conversation, so there is nothing to clear."

_BIND_USAGE = "`/agent bind NAME [listen=all|named|threads]`"
AGENT_USAGE = (
    "`/agent list`, `/agent show [NAME]`, `/agent create NAME [KEY=VALUE …] [WHAT IT IS FOR]`, "
    f"{_BIND_USAGE}, `/agent unbind`, "
    "`/agent config [NAME] KEY VALUE`, `/agent delete NAME [keep]`, `/agent undo [NAME]`"
)
SETTINGS_USAGE = (
    "`/settings [show]`, `/settings [here] model NAME`, `/settings [here] permissions PROFILE`, "
    "`/settings validate-keys`; `default` resets a choice"
)
TIMEZONE_USAGE = "`/timezone Europe/Berlin`; `/timezone default` resets it"
THREAD_USAGE = "`/thread list`, `/thread kill 2`, `/thread history 2`; `/thread list` shows the numbers"
NOT_SPOKEN = (
    "You have not written to me in this channel yet. Use /{name} in the thread that you mean, or send me a "
    "message here first."
)
STOP_USAGE = "`/stop`, `/stop all`, `/stop #2`; `/thread list` shows the numbers"
_NUMBER = lazy_re.compile(r"#\d{1,6}")
_DIGITS = lazy_re.compile(r"\d{1,6}")
_OPEN_VERBS = ("", "show", "list")
"""Subcommands of /agent that everyone may use. All others require a manager."""
_AGENT_VERBS = (*_OPEN_VERBS, "create", "bind", "unbind", "config", "destroy", "undo")
_AGENT_ALIASES = {
    "init": "create",
    "configure": "config",
    "set": "config",
    "delete": "destroy",
    "remove": "destroy",
    "rm": "destroy",
    "ls": "list",
    "info": "show",
}
FORBIDDEN = "Only my owner and the people in agents.managers can use this command."


class ContextWord(NamedTuple):
    """A subcommand of `/context` and its syntax. If `is_of_channel` is set, it also works outside threads."""

    usage: str
    answer: Answer
    is_of_channel: bool = False


class CommandRouter:
    """Runs all slash commands.

    - `links`: resolves who may see other channels.
    - `check_model`: raises InvalidInput for an unknown model.
    - `known_models`: returns the names of all models.
    - `activities`: list an agent's work outside its turns.
    """

    def __init__(
        self,
        orchestrator: Orchestrator,
        store: Store,
        agents: AgentRegistry,
        forks: Forks,
        clock: Clock,
        links: Links,
        agent_commands: "AgentCommands",
        always: AlwaysAllow,
        *,
        check_model: Callable[[str], None],
        known_models: Callable[[], Sequence[str]],
        activities: Sequence[Activity],
        timezones: TimeZones,
    ) -> None:
        self._timezones = timezones
        self._orchestrator = orchestrator
        self._always = always
        self._store = store
        self._numbers = ThreadNumbers(store.settings)
        self._agents = agents
        self._forks = forks
        self._clock = clock
        self._links = links
        self._check_model = check_model
        self._known_models = known_models
        self._activities = activities
        self.table = CommandTable()
        # A feature can replace this, to save the conversation first.
        self.start_over: Callable[[ThreadId, str], Awaitable[str]] = self._clear
        self.restore_files: Callable[[ThreadId, str, Asker], Awaitable[str]] | None = None  # Set by the undo feature.
        self.context_words: dict[str, ContextWord] = {}
        self._answers: dict[str, Answer] = {
            "help": self.help,
            "start": self.start,
            "new": self.new,
            "agent": agent_commands.agent,
            "settings": agent_commands.settings,
            "approve": self.decide,
            "deny": self.decide,
            "context": self.context,
            "status": self.status,
            "stop": self.stop,
            "steer": self.steer,
            "thread": self.thread,
            "tasks": self.tasks,
            "model": self.model,
            "retry": self.retry,
            "fork": self.fork,
            "timezone": self.timezone,
        }
        self._answers_in_channel: dict[str, AnswerInChannel] = {
            "new": self._new_in_channel,
            "status": self._channel_status,
            "stop": lambda asked, latest: self.stop(asked),
            "steer": lambda asked, latest: self.steer(asked),
            "approve": self._decide_in_channel,
            "deny": self._decide_in_channel,
            "context": self._context_in_channel,
            "thread": self._thread_in_channel,
            "model": self._model_in_channel,
        }

    def add(self, command: ChatCommand) -> None:
        """Add a command of a feature or package. Raises ConfigError if its name or number is taken."""
        self.table.add(command.spec)
        self._answers[command.spec.name] = command.answer
        if command.answer_in_channel is not None:
            self._answers_in_channel[command.spec.name] = command.answer_in_channel

    async def suggestions(self, asked: CommandRequest) -> Sequence[str]:
        before, _, typed = asked.argument.rpartition(" ")
        if typed == "model" and asked.name != "model":  # Some clients omit the trailing space.
            before, typed = asked.argument, ""
        match asked.name, before.split():
            case (
                ("model" | "retry", [])
                | ("settings", ["model"] | ["here", "model"])
                | ("agent", ["config" | "configure", *_, "model"])
            ):
                known = [name for name in self._known_models() if typed.lower() in name.lower()]
                return [f"{before} {name}".strip() for name in known]
            case _:
                return ()

    async def command(self, asked: CommandRequest) -> str:
        """Run a command and return its answer.

        If the request is invalid, the answer explains why. Raises StoreError if the database fails.
        """
        answer, spec = self._answers.get(asked.name), self.table.get(asked.name)
        if answer is None:
            return f"No command named /{asked.name}. Use /help to list all commands."
        try:
            await self._note_readers(asked)
            if spec is not None and spec.needs != "nothing":
                takes_place = spec.needs == "place"
                place = await whereabouts(asked, self._store.settings, self._store.journal, takes_place=takes_place)
                if place.in_channel:
                    return await self._in_channel(asked, spec, answer, place.thread)
                if spec.needs == "past" and await self._store.journal.thread(asked.thread) is None:
                    return NOTHING_SAID
            return await answer(asked)
        except StoreError:
            raise
        except ShoalError as error:
            return str(error)
        except OSError as error:
            log.warning("command failed", extra={"command": asked.name, "why": str(error)})
            return f"The command failed on this machine: {system_words(error)}."

    async def undo_files(self, card: CardId, by: Asker) -> str:
        calls = await self._store.approvals.on_card(card)
        if not calls or self.restore_files is None:
            raise NotFound(GONE)
        return await self.restore_files(calls[0].thread, calls[0].turn, self._links.people.asker(by))

    async def _note_readers(self, asked: CommandRequest) -> None:
        if not asked.direct or thread_address(asked.thread).platform in OWN_PLATFORMS:
            return
        audience = self._links.audience(asked.asker, asked.author, asked.thread)
        audience = msgspec.structs.replace(audience, everywhere=audience.everywhere and asked.author.trusted)
        await self._store.settings.put(AUDIENCE, channel_of(asked.thread), msgspec.json.encode(audience).decode())

    async def help(self, asked: CommandRequest) -> str:
        lines = [f"- `{spec.line}` {spec.description}" for spec in self.table]
        minutes = (await agent_here(self._store, self._agents, asked.thread)).idle_minutes
        return "\n".join(["Write to me and I will answer. Commands:", "", *lines, "", _idle_text(minutes)])

    async def start(self, asked: CommandRequest) -> str:
        return WELCOMES.format((await agent_here(self._store, self._agents, asked.thread)).name)

    async def new(self, asked: CommandRequest) -> str:
        note = await self.start_over(asked.thread, asked.author.id)
        return f"Starting fresh. {note}".rstrip()

    async def _in_channel(
        self, asked: CommandRequest, spec: CommandSpec, answer: Answer, latest: ThreadId | None
    ) -> str:
        in_channel = self._answers_in_channel.get(asked.name)
        text = await in_channel(asked, latest) if in_channel is not None else None
        if text is not None:
            return text
        if latest is None:
            return NOTHING_SAID if spec.needs == "past" else NOT_SPOKEN.format(name=asked.name)
        text = await answer(msgspec.structs.replace(asked, thread=latest))
        return f"{text}\n{await self._latest_line(asked, latest)}" if text else ""

    async def _new_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str | None:
        if latest is not None:
            return None
        return NEW_HERE if asked.thread.endswith(f":{WHOLE_CHANNEL}") else await self.new(asked)

    async def _decide_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str:
        channel, answer = channel_of(asked.thread), _answer(asked)
        end = answer.approval.upper()
        waiting = [
            approval
            for approval in await self._store.approvals.search()
            if approval.thread.startswith(channel)
            and (approval.id.upper().endswith(end) or approval.item.card.upper().endswith(end))
        ]
        return await self._decide_among(asked, answer, waiting)

    async def _context_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str | None:
        word = asked.argument.partition(" ")[0].lower()
        if word in self.context_words and self.context_words[word].is_of_channel:
            return await self.context(asked)
        return NOTHING_SAID if latest is None and word in ("", "show") else None

    async def _thread_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str | None:
        return None if asked.argument == "history" else await self.thread(asked)

    async def _model_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str | None:
        has_text = bool(asked.argument.partition(" ")[2].strip())
        return None if has_text and latest is not None else await self.model(asked)

    async def _latest_line(self, asked: CommandRequest, latest: ThreadId) -> str:
        number = (await self._numbers.of(asked.thread, [latest]))[latest]
        info = await self._store.journal.thread(latest)
        title = f" {short_line(info.title)}" if info is not None and info.title else ""
        return f"Your most recent conversation here: `#{number}`{title} (`{latest}`)."

    async def status(self, asked: CommandRequest) -> str:
        """Answer /status. Shows today's model usage only if the audience may see it."""
        thread = asked.thread
        info = await self._store.journal.thread(thread)
        if info is None:
            return NOTHING_SAID
        zone = await self.zone(asked)
        doing = "A turn is running or waiting for approval" if info.open_turn else "Idle"
        agent = info.agent or "not chosen yet"
        counts = f"{counted(await self._store.windows.messages(thread), 'message')} in this conversation"
        active = f"last active {moment_text(info.updated_at, zone)}"
        number = (await self._numbers.of(thread, [thread]))[thread]
        line = (
            f"{doing}. Queued messages: {info.queued}. Agent: {agent}. {counts}, {active}.\nThread `#{number}`, "
            f"`{thread}`."
        )
        return f"{line}\n{await self._spent(asked, info.agent, f'thread:{thread}')}".rstrip()

    async def _channel_status(self, asked: CommandRequest, latest: ThreadId | None) -> str:
        channel = channel_of(asked.thread)
        infos = [
            info
            for info in await self._store.journal.threads(THREADS_READ_MAX, channels=(channel,))
            if info.thread.startswith(channel)
        ]
        if not infos:
            return "This channel has no messages yet. Every message to me begins a conversation."
        works = await self._working_in(asked)
        spec = await agent_here(self._store, self._agents, asked.thread)
        count = f"{len(infos)}{' or more' if len(infos) == THREADS_READ_MAX else ''}"
        conversations = f"{count} conversation{'s' * (len(infos) != 1)} in this channel"
        head = f"{conversations}: {len(works) or 'none'} at work. Agent {spec.name}."
        lines = [line for _, line in await self._work_lines(asked, works)][:LINES_MAX]
        last = [await self._latest_line(asked, latest)] if latest is not None else []
        return "\n".join([head, *lines, *last, await self._spent(asked, spec.name, "")]).rstrip()

    async def _spent(self, asked: CommandRequest, agent: str, thread_scope: str) -> str:
        """Describe today's model usage. If untrusted people can read the answer, describe only this thread's remaining
        budget.
        """
        standings = await self._store.budget.standings()
        if self._links.audience(asked.asker, asked.author, asked.thread).guest:
            own = [standing for standing in standings if standing.scope == thread_scope]
            return "\n".join(
                f"Remaining budget: {standing.left}." for standing in own if standing.usd_max or standing.tokens_max
            )
        scopes = {thread_scope, f"agent:{agent}", "day", "total"}
        usage = await self._store.ledger.usage(1)
        return spent_today(usage, [standing for standing in standings if standing.scope in scopes])

    async def _working_in(self, asked: CommandRequest) -> list[Work]:
        channel = channel_of(asked.thread)
        works = [work for work in await self._store.registry.at_work(within=channel) if work.thread.startswith(channel)]
        return [work for work in works if work.turn] or works

    async def _work_lines(self, asked: CommandRequest, works: Sequence[Work]) -> list[tuple[int, str]]:
        numbers, now = await self._numbers.of(asked.thread, [work.thread for work in works]), self._clock.now()
        return [(numbers[work.thread], f"- `#{numbers[work.thread]}` {describe_work(work, now)}") for work in works]

    async def stop(self, asked: CommandRequest) -> str:
        words = asked.argument.lower().split()
        is_all = "all" in words
        named = [word for word in words if word != "all"]
        if len(named) > 1:
            return f"Usage: {STOP_USAGE}."
        threads = [await self._named(asked, named[0])] if named else await self._running(asked)
        if len(threads) > 1 and not is_all:
            return await self._which(asked, "/stop {}")
        receipts = [await self._orchestrator.send(Abort(thread, asked.author, is_all)) for thread in threads]
        delivered = [receipt for receipt in receipts if receipt.delivered]
        if not delivered:
            there = "in that thread" if named else "here"
            return f"Nothing is running {there}."
        if len(delivered) > 1:
            return f"Stopping {len(delivered)} conversations."
        return "Stopping." if delivered[0].turn else "Stopped the turn before it began."

    async def steer(self, asked: CommandRequest) -> str:
        word, _, rest = asked.argument.partition(" ")
        is_named = bool(_NUMBER.fullmatch(word)) or word.count(":") == 2
        text = rest.strip() if is_named else asked.argument
        if not text:
            return "Write your message after `/steer`."
        threads = [await self._named(asked, word)] if is_named else await self._running(asked)
        if len(threads) > 1:
            return await self._which(asked, "/steer {} TEXT")
        for thread in threads:
            receipt = await self._orchestrator.send(Steer(thread, asked.key, text, asked.author, asked.at))
            if receipt.status in ("delivered", "duplicate"):
                return "Sent to the running turn."
        return "Nothing is running here. Send your text as a normal message."

    async def _running(self, asked: CommandRequest) -> list[ThreadId]:
        """Return this thread or, if the command was given outside threads, all busy threads in the channel. If none is
        busy, return this thread.
        """
        place = await whereabouts(asked, self._store.settings, self._store.journal)
        if asked.direct or (not place.in_channel and await self._store.journal.thread(asked.thread) is not None):
            return [asked.thread]
        return [work.thread for work in await self._working_in(asked)] or [asked.thread]

    async def _which(self, asked: CommandRequest, command: str) -> str:
        lines = [
            f"{line}: `{command.format(f'#{number}')}`"
            for number, line in await self._work_lines(asked, await self._working_in(asked))
        ]
        return _listed(["Several turns are running in this channel. Choose one:", *lines], "")

    async def decide(self, asked: CommandRequest) -> str:
        answer = _answer(asked)
        return await self._decide_among(
            asked, answer, await self._store.approvals.matching(asked.thread, answer.approval)
        )

    async def _decide_among(self, asked: CommandRequest, answer: WrittenDecision, approvals: Sequence[Approval]) -> str:
        if not approvals:
            named = f" {asked.argument[:40]}" if asked.argument else ""
            return (
                f"No approval{named} is pending here. `shoal approvals list` shows the approvals of all conversations."
            )
        if len({approval.item.card or approval.id for approval in approvals}) > 1:
            lines = [
                f"- `/{asked.name} {card[-SHORT_ID_CHARS:]}` {approval.tool}: {short_line(approval.shown)}"
                for card, approval in {approval.item.card or approval.id: approval for approval in approvals}.items()
            ]
            return _listed(["Several approvals are pending here. Choose one:", *lines], "")
        if answer.scope == "always":
            named = approvals[0].item.card or approvals[0].id
            return await self._always.always(named, asked.asker, answer.numbers, or_thread=True)
        if (card := approvals[0].item.card) and (len(approvals) > 1 or answer.numbers or approvals[0].item.total == 1):
            return await self._orchestrator.decide_card(card, answer.allow, asked.asker, answer.numbers)
        await self._orchestrator.decide(approvals[0].id, answer.allow, asked.asker)
        return "Allowed." if answer.allow else "Denied."

    async def context(self, asked: CommandRequest) -> str:
        word, _, rest = asked.argument.partition(" ")
        thread, rest = asked.thread, rest.strip()
        match word.lower():
            case "" | "show":
                window = await self._store.windows.window(thread)
                if window is None:
                    return NOTHING_SAID
                count = window.last_seq - window.window_seq
                which = "all" if count == window.last_seq else f"the newest {count} of"
                return f"I see {which} {window.last_seq} events. Usage: {self.context_usage()}."
            case "clear":
                await self._orchestrator.clear(thread, asked.author.id)
                return "I cleared the context. Earlier messages remain stored, but I no longer see them."
            case other if other in self.context_words:
                return await self.context_words[other].answer(asked)
            case _:
                return f"Usage: {self.context_usage()}."

    def context_usage(self) -> str:
        return ", ".join(
            ("`/context [show]`", "`/context clear`", *(word.usage for word in self.context_words.values()))
        )

    async def _clear(self, thread: ThreadId, by: str) -> str:
        await self._orchestrator.clear(thread, by)
        return ""

    async def thread(self, asked: CommandRequest) -> str:
        match asked.argument.split():
            case [] | ["list"]:
                spec = await agent_here(self._store, self._agents, asked.thread)
                within, here, zone = self._within(asked), place_of(asked.thread), await self.zone(asked)
                channels = (within,) if within else ()
                infos = await self._store.journal.threads(THREADS_READ_MAX, agent=spec.name, channels=channels)
                numbers = await self._numbered(asked, [info.thread for info in infos[:LINES_MAX]][::-1])
                lines: list[str] = []
                for info in infos:
                    name = info.thread.rpartition(":")[2] if place_of(info.thread) == here else info.thread
                    number = f"`#{numbers[info.thread]}` " if info.thread in numbers else ""
                    state = "at work" if info.open_turn else "idle"
                    queued = f", {info.queued} waiting" if info.queued else ""
                    at = moment_text(info.updated_at, zone)
                    lines.append(f"- {number}`{name}` {short_line(info.title)} ({state}{queued}, {at})")
                return _listed(lines, f"{spec.name} has no threads here.")
            case ["kill", name]:
                thread = await self._named(asked, name)
                receipt = await self._orchestrator.send(Abort(thread, asked.author, all_queued=True))
                return f"Stopping {thread}." if receipt.delivered else f"Nothing is running in {thread}."
            case ["history"]:
                return await self._history(asked.thread, await self.zone(asked))
            case ["history", name]:
                return await self._history(await self._named(asked, name), await self.zone(asked))
            case _:
                return f"Usage: {THREAD_USAGE}."

    async def tasks(self, asked: CommandRequest) -> str:
        spec = await agent_here(self._store, self._agents, asked.thread)
        within, now = self._within(asked), self._clock.now()
        lines: list[str] = []
        works = await self._store.registry.at_work(spec.name, within=within)
        numbers = await self._numbered(asked, [work.thread for work in works[:LINES_MAX]])
        for work in works:
            child = f", for {work.parent}" if work.parent else ""
            number = f"`#{numbers[work.thread]}` " if work.thread in numbers else ""
            lines.append(f"- {number}`{work.thread}` {describe_work(work, now)}{child}")
        for activity in self._activities:
            lines += [f"- {line}" for line in await activity.for_people(spec.name, within)]
        return _listed(lines, f"{spec.name} is idle.")

    async def model(self, asked: CommandRequest) -> str:
        name, _, rest = asked.argument.partition(" ")
        if not name:
            spec = await agent_here(self._store, self._agents, asked.thread)
            known = [f"- `{model}`" for model in self._known_models()]
            head = f"**{spec.name}** uses `{spec.model}`. `/model NAME TEXT` asks another model once. Known models:"
            return "\n".join([head, _listed(known, "none")])
        if not asked.author.trusted:
            raise Forbidden(CHOOSES_NO_MODEL)
        self._check_model(name)
        if not rest.strip():
            return (
                f"To ask this model once, write `/model {name} TEXT`. To choose it permanently, write `/settings "
                f"model {name}`."
            )
        prompt = Prompt(
            asked.thread,
            asked.key,
            rest.strip(),
            asked.author,
            asked.at,
            model=name,
            message_id=asked.message_id,
            direct=asked.direct,
        )
        receipt = await self._orchestrator.send(prompt)
        return "I am busy: too many messages are already waiting. Try again later." if receipt.status == "busy" else ""

    async def retry(self, asked: CommandRequest) -> str:
        """Answer /retry: retry the model call that the turn waits for, or answer the last message again."""
        if asked.argument:
            self._check_model(asked.argument)
        receipt = await self._orchestrator.send(Retry(asked.thread, asked.author, model=asked.argument))
        if not receipt.delivered:
            key = f"retry:{asked.key}"
            await self._orchestrator.try_again(asked.thread, asked.asker, model=asked.argument, key=key)
        return "Trying again."

    async def fork(self, asked: CommandRequest) -> str:
        """Answer /fork: copy the conversation to a new thread in the channel.

        If the chat cannot have another thread, the owner gets the copy on the page.
        """
        opens = self._orchestrator.opens_threads(asked.thread, direct=asked.direct)
        if opens and thread_address(asked.thread).platform not in OWN_PLATFORMS:
            await self._orchestrator.open_copy(asked.thread, f"fork:{asked.key}", asked.author.id)
            return ""
        if not opens and asked.asker.trust != "owner":
            return "This chat is limited to one conversation, so I cannot create a copy here."
        channel = channel_of(asked.thread) if opens else "web:lobby:"

        async def place() -> str:
            return f"{channel}{self._clock.new_id()}"

        thread = ThreadId(await self.about(asked, place))
        if await self._store.journal.thread(thread) is None:
            await self._forks.fork(asked.thread, thread, asked.author.id)
        return "" if opens else f"The copy is on the page: `{thread}`."

    async def about(self, asked: CommandRequest, find: Callable[[], Awaitable[str]]) -> str:
        """Return a command's target, which is resolved once and stored.

        After a database failure, the platform delivers the command again, although it may already have taken effect. It
        must then have the same target. Raises the errors of `find`.
        """
        once = f"about:{thread_address(asked.thread).platform}:{asked.key}"
        stored = await self._store.settings.get(ONCE, once)
        if stored is None:
            stored = f"{to_micros(self._clock.now()):016} {await find()}"
            await self._store.settings.put(ONCE, once, stored)
        return stored.partition(" ")[2]

    async def _numbered(self, asked: CommandRequest, threads: Sequence[ThreadId]) -> dict[ThreadId, int]:
        """Number the threads. In a group, number only the group's own threads, because gaps would reveal threads
        elsewhere.
        """
        is_alone = asked.direct or thread_address(asked.thread).platform in OWN_PLATFORMS
        own = [thread for thread in threads if is_alone or place_of(thread) == place_of(asked.thread)]
        return await self._numbers.of(asked.thread, own)

    async def _named(self, asked: CommandRequest, name: str) -> ThreadId:
        """Find a thread by its id or, in this channel, by its number or the end of its id.

        Raises Forbidden for an id in a channel that the asker may not see, even if the thread does not exist. Raises
        NotFound if no thread matches, and InvalidInput if a number is also the end of another thread's id.
        """
        thread = ThreadId(name if name.count(":") == 2 else f"{channel_of(asked.thread)}{name}")
        if (match := _NUMBER.fullmatch(name)) or _DIGITS.fullmatch(name):
            numbered = await self._numbers.thread(asked.thread, int(name.removeprefix("#")))
            if match or numbered is not None:
                if not match and numbered != thread and await self._store.journal.thread(thread) is not None:
                    two = f"{name} is ambiguous: it is the number of one thread and the end of another thread's id."
                    raise InvalidInput(f"{two} Write `#{name}` or `{thread}`.")
                if numbered is None:
                    raise NotFound(f"Thread {name} does not exist. `/thread list` shows all threads.")
                thread = numbered
        if not thread.startswith(self._within(asked)):
            raise Forbidden("That thread is in another channel. Only my owner can see it, and only in a private chat.")
        if await self._store.journal.thread(thread) is None:
            raise NotFound(f"Thread {name[:80]} does not exist. `/thread list` shows all threads.")
        return thread

    def _within(self, asked: CommandRequest) -> str:
        return self._links.audience(asked.asker, asked.author, asked.thread).within(asked.thread)

    async def _history(self, thread: ThreadId, zone: str) -> str:
        stored = await self._store.journal.steps(thread)
        if not stored:
            return f"{thread} has no recorded steps."
        took = duration_text(sum(row.step.duration_ms for row in stored))
        head = f"{thread}: {counted(len(stored), 'step')}, {took} in all"
        if len(stored) > LINES_MAX:
            head += f"; the last {LINES_MAX}"
        lines = [
            f"- {moment_text(step.started_at, zone)} step {step.number}: {short_line(step.description)}, "
            f"{duration_text(step.duration_ms)}"
            for step in (row.step for row in stored[-LINES_MAX:])
        ]
        return "\n".join([f"{head}:", *lines])

    async def timezone(self, asked: CommandRequest) -> str:
        word = asked.argument.strip()
        if word.lower() == "help":
            return f"Usage: {TIMEZONE_USAGE}."
        if word:
            await self._timezones.choose(asked.asker, "" if word.lower() in ("default", "none", "off") else word)
        zone = await self.zone(asked)
        return f"Your time zone is {zone}, and it is {moment_text(self._clock.now(), zone)}. Usage: {TIMEZONE_USAGE}."

    async def zone(self, asked: CommandRequest) -> str:
        return await self._timezones.of(asked.asker, await agent_here(self._store, self._agents, asked.thread))


class AgentCommands(msgspec.Struct, frozen=True, eq=False):
    """Implements /agent and /settings."""

    store: Store
    agents: AgentRegistry
    lifecycle: AgentLifecycle
    versions: AgentVersions
    links: Links
    """Determines which conversations of an agent a person may see."""
    may_manage: Callable[[Asker], bool]
    """Returns whether a person may change agents and settings."""
    check_keys: Callable[[], Awaitable[Sequence[str]]]
    """Checks the providers' keys and returns one line per provider."""

    async def agent(self, asked: CommandRequest) -> str:
        """Answer /agent: show, create, change, bind or delete agents. Only managers may change them."""
        word, _, rest = asked.argument.partition(" ")
        verb, rest = _AGENT_ALIASES.get(word.lower(), word.lower()), rest.strip()
        by = f"{asked.asker.platform}:{asked.asker.user}"
        if verb not in _AGENT_VERBS:
            return f"I do not know `/agent {word[:40]}`. Usage: {AGENT_USAGE}."
        if verb not in _OPEN_VERBS:
            self._check_may_manage(asked)
        match verb:
            case "" | "show":
                return await self._describe(asked, rest)
            case "list":
                cards, lines = await self.lifecycle.cards(within=self._within(asked)), list[str]()
                for card in cards[:AGENTS_LISTED_MAX]:
                    notes = ["default"] if card.is_default else []
                    notes += [f"in {place}: {listen}" for place, listen in list(card.places.items())[:3]]
                    notes.append(f"{card.at_work} at work" if card.at_work else "idle")
                    more, spec = f" ({', '.join(notes)})" if notes else "", card.spec
                    what = f"`{spec.model}`, {spec.profile}" if spec is not None else f"broken: {card.error}"
                    lines.append(f"- **{card.name}** {what}{more}")
                if len(cards) > AGENTS_LISTED_MAX:
                    lines.append(f"- and {len(cards) - AGENTS_LISTED_MAX} more")
                return "\n".join(lines)
            case "create":
                name, listen, settings, purpose = choices_in(rest)
                if not name:
                    raise InvalidInput("Write `/agent create NAME`, followed by the agent's purpose.")
                if purpose:
                    settings["system_prompt"] = purpose
                await self.lifecycle.create(name, settings, by)
                made = await self.lifecycle.give_channel(name, asked.thread, by, listen)
                where = made if isinstance(made, str) else f"It answers in the new channel {made.place}."
                return f"Created the agent **{name}**. {where}"
            case "bind":
                name, listen, settings, more = choices_in(rest)
                if not name or settings or more:
                    raise InvalidInput(f"Write {_BIND_USAGE}. `/agent list` shows the names.")
                binding = await self.lifecycle.bind(name, asked.thread, by, listen)
                return f"**{binding.agent}** answers {HEARD[listen]} in this channel, starting with the next message."
            case "unbind":
                await self.lifecycle.unbind(asked.thread, by)
                return "This channel is no longer bound to an agent."
            case "config":
                first, _, after = rest.partition(" ")
                if not first:
                    raise InvalidInput(f"Write `/agent config KEY VALUE`. Keys: {', '.join(KEYS)}.")
                if key_named(first) in KEYS or not after:
                    name, key, value = await self._name_here(asked), first, after.strip()
                else:
                    key, _, value = after.strip().partition(" ")
                    name, value = first, value.strip()
                await self.lifecycle.configure(name, key, value, by)
                shown = f"`{value[:200]}`" if value else "the default"
                return f"**{name}**: {key} is now {shown}. The change takes effect on the next turn."
            case "destroy":
                name, *words = rest.split() or [""]
                keeps, codes = "keep" in words, [word for word in words if word != "keep"]
                if not name or len(codes) > 1:
                    raise InvalidInput("Write `/agent delete NAME`. Add `keep` to keep the agent's files.")
                doomed = await self.lifecycle.doomed(name)
                code = hashlib.sha256(f"{doomed.digest} {by} {keeps}".encode()).hexdigest()[:CODE_CHARS]
                if codes != [code]:
                    return _asks_to_delete(doomed, keeps=keeps, code=code, is_stale=bool(codes))
                kept_in = await self.lifecycle.destroy(name, by, keep=keeps)
                return f"Deleted the agent **{name}**. Its files are {f'in {kept_in}' if kept_in else 'deleted too'}."
            case _:  # The remaining action is "undo".
                name = rest or await self._name_here(asked)
                if not self.agents.exists(name):
                    raise InvalidInput(f"No agent named {name[:80]!r}. `/agent list` shows all agents.")
                return await self.versions.undo(name, asked.author.id)

    async def settings(self, asked: CommandRequest) -> str:
        words = asked.argument.split()
        is_here = bool(words) and words[0].lower() == "here"
        words = words[is_here:]
        bindings, here, account = self.agents.bindings, place_of(asked.thread), thread_address(asked.thread).platform
        match [words[0].lower(), *words[1:]] if words else []:
            case [] | ["show"]:
                if bindings is None:
                    return ""
                widest = await bindings.widest(asked.thread)
                spec = await agent_here(self.store, self.agents, asked.thread)
                lines = [f"- in this channel: {_choices_text(await bindings.chosen_for(here))}"]
                if widest != account:
                    lines.append(f"- in this server: {_choices_text(await bindings.chosen_for(widest))}")
                lines.append(f"- everywhere on {account}: {_choices_text(await bindings.chosen_for(account))}")
                what = f"the model `{spec.model}` and the permissions `{spec.profile}`"
                return "\n".join([*lines, f"- result: **{spec.name}** uses {what} here"])
            # `here` changes the setting of the channel. Without it, the setting of the server or account changes.
            case ["model" | "permissions" as key, value]:
                self._check_may_manage(asked)
                assert bindings is not None, "the app must set the agents' bindings"
                value = "" if value == "default" else value
                where = here if is_here else await bindings.widest(asked.thread)
                field = "model" if key == "model" else "profile"
                choices = msgspec.structs.replace(await bindings.chosen_for(where), **{field: value})
                await self.lifecycle.choose(where, choices, f"{asked.asker.platform}:{asked.asker.user}")
                shown = f"`{value}`" if value else "unset"
                note = (
                    ""
                    if is_here
                    else (" Agents with their own setting keep it. `/settings here` applies to one channel only.")
                )
                return f"{key} is now {shown} in {where}. The change takes effect on the next turn.{note}"
            case ["validate-keys"]:
                self._check_may_manage(asked)
                return "\n".join(await self.check_keys()) or "No provider is configured."
            case _:
                return f"Usage: {SETTINGS_USAGE}."

    async def _describe(self, asked: CommandRequest, name: str) -> str:
        here = await agent_here(self.store, self.agents, asked.thread)
        card = await self.lifecycle.card(name or here.name, within=self._within(asked))
        if card.spec is None:
            return f"**{card.name}** is broken: {card.error}"
        spec = here if name in ("", here.name) else card.spec
        fallback = f", then {', '.join(spec.fallback)}" if spec.fallback else ""
        places = [f"{place} ({listen})" for place, listen in card.places.items()]
        lines = [
            f"**{card.name}**{'' if name else ' answers here'}",
            f"- model `{spec.model}`{fallback}",
            f"- permissions `{spec.profile}`",
            f"- tools: {', '.join(spec.tools) if spec.tools else 'all'}",
            f"- channels: {', '.join(places) if places else 'none'}",
        ]
        budget = {name: value for name, value in msgspec.structs.asdict(spec.budget).items() if value}
        if budget:
            lines.append(f"- budget: {', '.join(f'{name} {value:,}' for name, value in budget.items())}")
        quiet = (
            f"after {spec.idle_minutes:g} min of inactivity"
            if spec.idle_minutes
            else "only on request (`idle_minutes` is 0)"
        )
        lines.append(f"- saves the conversation and starts fresh {quiet}")
        if card.at_work:
            lines.append(f"- {counted(card.at_work, 'turn')} at work")
        return "\n".join(lines)

    async def _name_here(self, asked: CommandRequest) -> str:
        return (await agent_here(self.store, self.agents, asked.thread)).name

    def _within(self, asked: CommandRequest) -> str:
        return self.links.audience(asked.asker, asked.author, asked.thread).within(asked.thread)

    def _check_may_manage(self, asked: CommandRequest) -> None:
        if not self.may_manage(asked.asker):
            raise Forbidden(FORBIDDEN)


async def agent_here(store: Store, agents: AgentRegistry, thread: ThreadId) -> AgentSpec:
    """Return the agent that would answer the thread's next message.

    Raises StoreError, and InvalidInput if the agent's file is broken.
    """
    name = await agents.agent_name_for(thread, "")
    if not name:
        info = await store.journal.thread(thread)
        name = info.agent if info is not None else ""
    return await agents.resolve(name, thread)


def _asks_to_delete(doomed: DoomedAgent, *, keeps: bool, code: str, is_stale: bool) -> str:
    """Return the question that asks a person to confirm the deletion of an agent.

    The code in it is valid only for the asker, and only while the facts shown are unchanged.
    """
    files = f"{'more than ' if doomed.is_more else ''}{counted(doomed.files, 'file')}"
    fate = "move to `removed/`" if keeps else "are deleted permanently"
    lines = [
        "This code is invalid or has expired. " * is_stale + f"Delete the agent **{doomed.name}**?",
        f"- its {files} ({counted(doomed.size_bytes, 'byte')}) {fate}",
    ]
    lines += [f"- another agent will answer in {', '.join(doomed.places)}"] if doomed.places else []
    lines += [f"- {counted(doomed.at_work, 'running turn')} will stop"] if doomed.at_work else []
    keep = " keep" if keeps else ""
    lines.append(f"To confirm, write `/agent delete {doomed.name}{keep} {code}`.")
    return "\n".join(lines if keeps else [*lines, f"`/agent delete {doomed.name} keep` keeps the agent's files."])


def _idle_text(minutes: float) -> str:
    if minutes:
        return f"I save and clear a conversation after {minutes:g} min of inactivity (`/agent config idle_minutes`)."
    return "`/agent config idle_minutes 30` makes me save and clear a conversation after 30 minutes of inactivity."


def _choices_text(choices: ChannelChoices) -> str:
    chosen = [f"model `{choices.model}`"] if choices.model else []
    chosen += [f"permissions `{choices.profile}`"] if choices.profile else []
    return ", ".join(chosen) or "nothing chosen"


def _listed(lines: Sequence[str], nothing: str) -> str:
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"- and {len(lines) - LINES_MAX} more"]
    return "\n".join(lines) or nothing


def moment_text(moment: datetime, timezone: str) -> str:
    return local_time(moment.astimezone(zone_named(timezone)))


def _answer(asked: CommandRequest) -> WrittenDecision:
    word = "allow" if asked.name == "approve" else "deny"
    return parse_answer(f"{word} {asked.argument}") or WrittenDecision(asked.argument, asked.name == "approve")
