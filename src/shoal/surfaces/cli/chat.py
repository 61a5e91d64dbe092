"""`shoal chat`: a conversation in the terminal, or over a pipe.

Lines that begin with / are commands, and other lines are prompts. While the agent waits for an approval, the answers y,
t, a and n decide the request.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing

import click
import msgspec

from shoal.kernel.effect_notes import DROPPED
from shoal.kernel.errors import Conflict, Forbidden, Gone, InvalidInput, NotFound, ShoalError
from shoal.kernel.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    EffectsAccepted,
    Event,
    Failed,
    FilesChanged,
    FilesRestored,
    LiveEvent,
    OutputShown,
    RetryScheduled,
    StatusChanged,
    TextStreamed,
    ThinkingStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId, parse_thread_id
from shoal.kernel.messages import SILENT, ToolCall, Usage
from shoal.kernel.phrases import counted
from shoal.kernel.posts import OutboundPost
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import (
    call_line,
    echo,
    event_lines,
    failure_lines,
    is_dumb,
    printable,
    request_lines,
    result_lines,
    status_words,
    timed,
)
from shoal.surfaces.cli.thread_client import ThreadClient, open_thread
from shoal.threads.written_decisions import WrittenDecision, parse_answer, parse_take_back

THREAD = ThreadId("terminal:local:main")


@command(example="shoal chat --agent main")
@click.option("--thread", default=str(THREAD), show_default=True, help="Continue this thread.")
@agent_option("Agent that answers in a new thread. [default: the default agent]")
def chat(context: CommandContext, thread: str, agent: str) -> int:
    """Chat in the terminal. /help lists the commands. When the agent asks for approval, answer y, t, a or n.

    When standard input is not a terminal, each line is a message. The chat ends when all messages are answered.
    """
    if not context.debug:  # errors are shown from the journal
        logging.getLogger().addHandler(logging.NullHandler())
    return asyncio.run(_chat(context, parse_thread_id(thread), agent))


async def _chat(context: CommandContext, thread: ThreadId, agent: str) -> int:
    import anyio

    async with open_thread(context, thread, channel="local") as (link, chosen), anyio.create_task_group() as tasks:
        if sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb():
            from shoal.surfaces.cli.terminal_screen import TerminalScreen

            screen = TerminalScreen(context.home, await link.commands())
            conversation = TerminalChat(link, chosen, agent, screen, recaps=True)
            with screen.shown(conversation):
                tasks.start_soon(conversation.follow)
                tasks.start_soon(screen.animate)
                await conversation.opened.wait()
                name = conversation.answers or agent or context.config().agents.default_agent
                screen.show_notice(f"Chatting with **{name}**. `/help` lists the commands. Ctrl-D exits.")
                while (line := await screen.read()) is not None and await conversation.type(line):
                    pass
                tasks.cancel_scope.cancel()
            return 0
        conversation = TerminalChat(link, chosen, agent, ChatScreen())
        tasks.start_soon(conversation.follow)
        await conversation.opened.wait()
        if sys.stdin.isatty():
            name = conversation.answers or agent or context.config().agents.default_agent
            echo(f"Chatting with {name}. `/help` lists the commands. Ctrl-D exits.")
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if not line.startswith("/"):
                await conversation.quiet.wait()
            if not await conversation.type(line):
                break
        await conversation.quiet.wait()
        tasks.cancel_scope.cancel()
        for approval in conversation.questions:
            echo(
                f"shoal: waiting for approval. Decide with `shoal approvals allow {approval}` or `deny`.",
                sys.stderr,
            )
        return 1 if conversation.questions else 0
    return 0


NO_TURN = TurnId("")
RECAP_EVENTS = 40
"""Number of earlier events shown when a chat opens in a terminal."""
OPEN_EVENTS = 200
"""Number of earlier events that are read to find the activity of the open turn."""

COMMANDS = {
    "stop": "stop the running turn; /stop all also drops waiting messages",
    "steer": "send TEXT to the running turn",
    "new": "start over: the agent forgets this conversation, but the journal keeps it",
    "status": "show the state of this conversation",
    "allow": (
        "allow the oldest request; /allow thread and /allow always also allow the same call later; /allow 1 3 "
        "allows only calls 1 and 3"
    ),
    "deny": "deny the oldest request; /deny 2 denies only call 2",
    "thinking": "show the model's last thinking",
    "help": "list the commands",
    "quit": "leave",
}
"""Commands of the terminal chat, in addition to the commands of all chats."""

ANSWERS = {"y": "allow", "yes": "allow", "t": "thread", "a": "always", "n": "deny", "no": "deny"}


def _verdict_of(answer: WrittenDecision) -> str:
    if not answer.allow:
        return "deny"
    return "allow" if answer.scope == "once" else answer.scope


class RunningCall(msgspec.Struct):
    """A running call.

    label: the tool's name and its main argument.
    since: Unix time at which the call started.
    written: the last part of the call's output.
    """

    label: str
    since: float
    written: str = ""


class ChatScreen:
    """Prints a chat. This base class is for pipes and prints only finished lines."""

    def line(self, text: str) -> None:
        print(text, flush=True)

    def show_answer(self, markdown: str) -> None:
        print(markdown.removesuffix("\n"), flush=True)

    def show_notice(self, markdown: str) -> None:
        echo(markdown)

    def thought(self, seconds: float) -> None:
        """Collapse the model's thinking into a line with its duration. Prints nothing over a pipe."""

    def finished(self, markdown: str) -> int:
        """Return how many leading characters of the unfinished answer can be printed permanently."""
        return markdown.rfind("\n") + 1

    def asked(self, call: ToolCall) -> None:
        print(f"→ {call_line(call)}", flush=True)

    def wants(self, request: ApprovalRequested) -> None:
        for line in request_lines(request):
            print(line, flush=True)

    def ended(self, result: ToolFinished, label: str, seconds: float) -> None:
        for line in result_lines(result):
            print(line, flush=True)

    def changed(self) -> None:
        """Redraw the screen after a change that no other method shows. Does nothing over a pipe."""


class TerminalChat:
    """A chat in one thread. With `recaps`, it begins with the recent history.

    answer: the answer that the agent is writing.
    thinking: the model's thinking before the answer.
    running: the running calls.
    questions: the pending approvals.
    """

    def __init__(
        self, link: ThreadClient, thread: ThreadId, agent: str, screen: ChatScreen, *, recaps: bool = False
    ) -> None:
        self.link = link
        self.thread = thread
        self.agent = agent
        self.screen = screen
        self.answers = ""
        """Name of the agent that answers in the thread, or empty before the first message."""
        self.questions: dict[ApprovalId, ApprovalRequested] = {}
        self.running: dict[CallId, RunningCall] = {}
        self.answer = StreamedAnswer(screen)
        self.thinking = StreamedThinking(screen)
        self.quiet = asyncio.Event()
        """Set while no turn is running, and while the turn waits for an approval."""
        self.opened = asyncio.Event()
        """Set when the history has been loaded."""
        self._recaps = recaps
        self._labels: dict[CallId, str] = {}
        self._sent: set[str] = set()
        self._sending = ""
        self._heard: set[str] = set()
        """Ids of messages that arrive while a message is being sent. One of them may be the sent message, whose id is
        known only after sending.
        """
        self._turn = NO_TURN
        self._undoable = ""
        """Turn whose staged calls were just discarded. The next typed line can undo its file changes."""
        self._known_seq = 0
        self._status = StatusChanged("thinking")
        self._since = time.time()
        self._usage = Usage()

    async def follow(self) -> None:
        standing = await self.link.standing()
        if standing is not None:
            self._known_seq = standing.last_seq
            self._turn = standing.open_turn
            self.answers = standing.agent
        if self._known_seq == 0:
            self._update_state()
            self.opened.set()
        with self.link.posts(self.show_post):
            async with aclosing(self.link.watch(max(0, self._known_seq - OPEN_EVENTS))) as items:
                async for item in items:
                    match item:
                        case LiveEvent(data=ThinkingStreamed(text=text, step=step)):
                            self.thinking.stream(text, step)
                        case LiveEvent(data=TextStreamed(text=text, step=step)):
                            self.thinking.fold()
                            self.answer.stream(text, step)
                        case LiveEvent(data=StatusChanged() as status):
                            self.show_status(status)
                        case LiveEvent(data=OutputShown(call_id=call_id, text=text)) if call_id in self.running:
                            self.running[call_id].written = text
                        case Event():
                            self._take_event(item)
                        case _:
                            pass
                    self.screen.changed()

    @property
    def doing(self) -> str:
        """The turn's current activity and its duration, or empty if no turn is running."""
        if not self.is_running:
            return ""
        if self.is_held:
            return status_words(StatusChanged("waiting"), 0)
        if self.answer.unfinished:
            return "writing"
        if self.thinking.text:
            return timed("thinking", self.thinking.seconds)
        if self.running:
            names = ", ".join(run.label.partition(" ")[0] for run in self.running.values())
            longest = time.time() - min(run.since for run in self.running.values())
            return status_words(StatusChanged("tool", names), longest)
        return status_words(self._status, time.time() - self._since)

    def show_status(self, status: StatusChanged, since: float | None = None) -> None:
        self._status, self._since = status, since or time.time()

    async def type(self, line: str) -> bool:
        """Process a typed line. Return False if it ends the chat."""
        text, undoable, self._undoable = line.strip(), self._undoable, ""
        try:
            if undoable and text.lower() in ("u", "undo"):
                self.screen.show_notice(await self.link.command(f"/undo {undoable}"))
                return True
            answer = parse_answer(text) if self.questions else None
            if self.is_held and text.lower() in ANSWERS:
                await self._decide(ANSWERS[text.lower()])
            elif answer is not None and not answer.approval and (answer.of_set or self.is_held):
                await self._decide(_verdict_of(answer), answer.numbers, of_set=answer.of_set)
            elif named := parse_take_back(text):
                self.screen.line(await self.link.take_back(named))
            elif text.startswith("/"):
                return await self._command(text)
            elif text:
                await self._send(text)
        except ShoalError as error:
            self.screen.show_notice(f"! {error}")
        return True

    @property
    def is_held(self) -> bool:
        """True if the turn waits for an approval. A turn does not wait for staged calls."""
        return any(not request.item.staged for request in self.questions.values())

    @property
    def is_running(self) -> bool:
        """True if a turn is running or a prompt is queued."""
        return bool(self._turn or self._sent)

    async def stop(self, *, all_queued: bool = False) -> None:
        if not await self.link.abort(all_queued=all_queued):
            self.screen.line("Nothing is running.")
        if all_queued:
            self._sent.clear()
            self._update_state()

    # ---- input ----

    async def _command(self, text: str) -> bool:
        name, _, rest = text.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/stop":
                await self.stop(all_queued=rest.strip() == "all")
            case "/steer":
                if not rest.strip():
                    self.screen.line("Add the text to send: /steer TEXT")
                elif not await self.link.steer(rest.strip()):
                    self.screen.line("No turn is running. Send the text as a message instead.")
            case "/new":
                try:
                    await self.link.clear()
                except NotFound:
                    self.screen.line("This conversation is empty.")
            case "/status":
                standing = await self.link.standing()
                lines = [f"thread   {self.thread}", f"runs in  {self.link.place}"]
                if standing is not None:
                    doing = "a turn is open" if standing.open_turn else "idle"
                    lines.append(f"agent    {standing.agent or self.agent or 'the default one'}")
                    lines.append(f"state    {doing}, {standing.queued} waiting, {counted(standing.last_seq, 'event')}")
                used = f"{self._usage.input_tokens} in, {self._usage.output_tokens} out"
                self.screen.line("\n".join([*lines, f"tokens   {used} since this chat was opened"]))
            case "/allow" | "/deny":
                answer = parse_answer(f"{name} {rest}".strip()) or WrittenDecision("", name == "/allow")
                await self._decide(_verdict_of(answer), answer.numbers)
            case "/thinking":
                self.screen.show_answer(self.thinking.last.strip() or "No thinking to show yet.")
            case "/help":
                own = [f"/{name:<9} {about}" for name, about in COMMANDS.items()]
                others = [
                    f"/{spec.name:<9} {spec.description}"
                    for spec in await self.link.commands()
                    if spec.name not in COMMANDS
                ]
                self.screen.line(
                    "\n".join([*own, "", "Commands in every chat. Type a command without arguments for help:", *others])
                )
            case _:
                answer = await self.link.command(text)
                if answer:
                    self.screen.show_notice(answer)
        return True

    async def _send(self, text: str) -> None:
        self.quiet.clear()
        self._sending = text
        self._heard.clear()
        if not self.is_running:
            self.show_status(StatusChanged("thinking"))
        try:
            message_id = await self.link.send(text, self.agent)
            if not message_id:
                self.screen.line(
                    "Too many prompts are waiting. Stop the turn with /stop, or add to it with /steer TEXT."
                )
            elif message_id not in self._heard:
                self._sent.add(message_id)
        finally:
            self._sending = ""
            self._update_state()

    async def _decide(self, answer: str, numbers: Sequence[int] = (), *, of_set: bool = False) -> None:
        waiting = [item for item in self.questions.items() if item[1].item.staged == of_set]
        if not waiting and not self.questions:
            self.screen.line("Nothing is waiting for approval.")
            return
        approval, request = waiting[0] if waiting else next(iter(self.questions.items()))
        card = request.item.card
        of_card = [question for question, other in self.questions.items() if card and other.item.card == card]
        runs_next = f"staged:{card}" if request.item.staged and answer != "deny" else ""
        if runs_next:  # id of the message that starts the turn for the accepted calls
            self._sent.add(runs_next)
        try:
            if answer == "always":
                self.screen.line(await self.link.always(card or approval, numbers))
                if card:
                    return
            elif len(of_card) > 1 or numbers or request.item.staged:
                if not card:
                    raise InvalidInput("Only one call is waiting, so there are no numbers to choose from.")
                decided = await self.link.decide_card(card, allow=answer != "deny", numbers=numbers)
                self.screen.line(decided.message)
                if decided.undo:
                    self._undoable = decided.undo
                    self.screen.line("Type u to undo the file changes now.")
                return  # events from the journal remove the decided calls
            else:
                scope = "thread" if answer == "thread" else "once"
                await self.link.decide(approval, allow=answer != "deny", scope=scope)
        except (InvalidInput, Forbidden) as refused:  # the request stays pending
            self._sent.discard(runs_next)
            self.screen.show_notice(f"! {refused}")
            return
        except (NotFound, Conflict, Gone) as error:
            self._sent.discard(runs_next)
            self.screen.show_notice(f"! {error}")
        self.questions.pop(approval, None)
        self._update_state()

    # ---- events ----

    def show_post(self, post: OutboundPost) -> None:
        """Show an agent's post. Replies and approval cards are skipped, because the event stream already shows them."""
        if post.kind != "card" and ":reply:" not in post.key:
            self.answer.cut()
            self.screen.show_answer(printable(post.markdown) + (f" [{post.file}]" if post.file else ""))

    def _take_event(self, event: Event) -> None:
        if event.turn == self._turn:
            self.show_status(StatusChanged("thinking"), event.at.timestamp())
        match event.data:
            case TurnStarted():
                self._turn = event.turn
                self.show_status(StatusChanged("thinking"))
            case AssistantSaid(tool_calls=calls, thinking=thinking):
                self.thinking.end(thinking)
                self._labels.update((call.id, call_line(call)) for call in calls)
            case EffectsAccepted(calls=calls):
                self._labels.update((call.id, call_line(call)) for call in calls)
            case ToolStarted(call_id=call_id, name=name):
                label = self._labels.get(call_id, printable(name))
                self.running[call_id] = RunningCall(label, event.at.timestamp())
            case RetryScheduled(message=message, next_at=next_at):
                self.show_status(StatusChanged("retrying", message.rstrip("."), (next_at - event.at).total_seconds()))
            case ApprovalRequested() as request:
                self.questions[request.approval_id] = request
            case ApprovalSettled(approval_id=approval):
                self.questions.pop(approval, None)
            case Failed(kind=kind) if kind == DROPPED:
                self._sent = {key for key in self._sent if not key.startswith("staged:")}
            case TurnFinished() as finished:
                self.thinking.fold()
                self._usage = self._usage + finished.usage
                self._turn = NO_TURN
                self.running.clear()
            case _:
                pass
        if event.seq > self._known_seq:
            self._show(event)
        elif self._recaps and event.seq > self._known_seq - RECAP_EVENTS:
            if isinstance(event.data, UserSaid):
                self._lines(event)
            elif isinstance(event.data, AssistantSaid) and event.data.text.strip():
                self.screen.show_answer(printable(event.data.text))
        if isinstance(event.data, ToolFinished):
            self.running.pop(event.data.call_id, None)
            self._labels.pop(event.data.call_id, None)
        if isinstance(event.data, UserSaid):
            if self._sending:
                self._heard.add(event.data.message_id)
            if event.data.message_id in self._sent:
                self._sent.discard(event.data.message_id)
                self._turn = event.turn
        if event.seq == self._known_seq:  # the history is complete: show the requests that are still pending
            for request in self.questions.values():
                self.screen.wants(request)
        if event.seq >= self._known_seq:
            self._update_state()
            self.opened.set()

    def _update_state(self) -> None:
        if self.is_running and not self.is_held:
            self.quiet.clear()
        else:
            self.quiet.set()
        self.screen.changed()

    def _show(self, event: Event) -> None:
        match event.data:
            case UserSaid(message_id=message_id, text=text):
                if message_id not in self._sent and text != self._sending:
                    self._lines(event)
            case AssistantSaid() as said:
                self.answer.end(said.text)
                for call in said.tool_calls:
                    self.screen.asked(call)
            case EffectsAccepted(calls=calls):
                self.answer.runs_accepted = True
                for call in calls:
                    self.screen.asked(call)
            case ToolStarted():
                pass  # shown among the running calls
            case ToolFinished(call_id=call_id, duration_ms=duration_ms) as result:
                run = self.running.get(call_id)
                seconds = duration_ms / 1000 or (event.at.timestamp() - run.since if run is not None else 0.0)
                self.screen.ended(result, self._labels.get(call_id, printable(result.name)), seconds)
            case Failed(message=message, detail=detail, fatal=is_fatal):
                self.answer.fail(message, detail, is_fatal=is_fatal)
            case TurnFinished() as finished:
                self.answer.finish(finished)
            case ApprovalRequested() as request:
                self.answer.cut()
                self.screen.wants(request)
            case FilesChanged(changed=changed) if changed:
                self.screen.show_notice(
                    f"[{counted(changed, 'file')} changed. /undo shows the changes, /undo last reverts them.]"
                )
            case FilesRestored(restored=restored, by=by):
                self.screen.show_notice(f"[{by} undid a turn: {counted(restored, 'file')} restored]")
            case _:
                self._lines(event)

    def _lines(self, event: Event) -> None:
        self.answer.cut()
        for line in event_lines(event):
            self.screen.line(line)


class StreamedThinking:
    """The model's thinking before an answer. It streams into `text`, and becomes one line when the answer begins."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._step: int = 0
        self._since = 0.0
        self.text = ""
        self.last = ""

    @property
    def seconds(self) -> float:
        return time.time() - self._since

    def stream(self, text: str, step: int) -> None:
        if step != self._step or not self.text:
            self._step, self._since, self.text = step, time.time(), ""
        self.text += printable(text)

    def fold(self) -> None:
        if self.text.strip():
            self.last = self.text
            self._screen.thought(self.seconds)
        self.text = ""

    def end(self, thinking: str) -> None:
        self.fold()
        self.last = printable(thinking) or self.last


class StreamedAnswer:
    """The agent's answer. It arrives twice, first streamed and then complete, and each part is shown once."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._step: int = 0
        self._streamed = ""
        self._shown = 0
        self._said = ""
        self._failure = ""
        self.runs_accepted = False
        """True if the turn runs accepted staged calls. Such a turn has results but no answer."""

    @property
    def unfinished(self) -> str:
        return "" if SILENT.startswith(self._streamed.strip()) else self._streamed[self._shown :]

    def stream(self, text: str, step: int) -> None:
        if step != self._step:  # the previous call was cut off, and the model is called again
            if self._shown:
                self._screen.line("… retrying:")
            self._step, self._streamed, self._shown = step, "", 0
        self._streamed += printable(text)
        if "\n" in text and (done := self._screen.finished(self.unfinished)):
            self._screen.show_answer(self._streamed[self._shown : self._shown + done])
            self._shown += done

    def end(self, text: str) -> None:
        text = printable(text)
        self._said += text
        if text.strip() == SILENT:
            self._streamed = ""
        elif text and self._streamed and text.startswith(self._streamed[: self._shown]):
            self._streamed = text
        elif text.strip():
            self.cut()
            self._streamed = text
        self.cut()

    def cut(self) -> None:
        if (rest := self.unfinished.rstrip()).strip():
            self._screen.show_answer(rest)
        self._streamed, self._shown = "", 0

    def fail(self, message: str, detail: str, *, is_fatal: bool) -> None:
        self.cut()
        self._failure = message if is_fatal else self._failure
        self._screen.line("\n".join(failure_lines(message, detail)))

    def finish(self, finished: TurnFinished) -> None:
        self.cut()
        reply = printable(finished.reply.strip())
        if finished.outcome == "failed":
            if reply != printable(self._failure.strip()):
                self._screen.line(f"! {reply}")
        elif reply and not self._said.strip().endswith(reply):
            self._screen.show_answer(reply)
        elif not reply and finished.outcome == "done" and not self.runs_accepted:
            self._screen.line("(the agent chose to say nothing)")
        if finished.outcome == "aborted":
            self._screen.line("Stopped.")
        self._said = self._failure = ""
        self.runs_accepted = False
