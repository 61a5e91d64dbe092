"""`shoal chat`: a conversation in the terminal, or over a pipe.

Plain lines are prompts; lines that begin with / are commands; while the agent waits for a permission, y, t, n answer.
"""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound, ShoalError
from shoal.domain.events import (
    ApprovalRequested,
    ApprovalSettled,
    AssistantSaid,
    Event,
    Failed,
    LiveEvent,
    StatusChanged,
    TextStreamed,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
)
from shoal.domain.ids import ApprovalId, ThreadId, TurnId, parse_thread_id
from shoal.domain.messages import SILENT, Usage
from shoal.domain.posts import OutboundPost
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import call_line, event_lines, printable, result_lines

if TYPE_CHECKING:
    from shoal.surfaces.cli.link import Link

THREAD = ThreadId("terminal:local:main")
"""The thread of a chat unless another is named."""


@click.command()
@click.option("--thread", default=str(THREAD), show_default=True, help="The conversation to go on with.")
@click.option("--agent", default="", help="Who answers in a new conversation; without it the default agent.")
@click.pass_obj
def chat(context: CommandContext, thread: str, agent: str) -> int:
    """Chat in the terminal: /help lists the commands; y, t and n answer the agent's questions.

    When standard input is not a terminal, each line is a message, and the chat ends when all are answered.
    """
    return asyncio.run(_chat(context, parse_thread_id(thread), agent))


async def _chat(context: CommandContext, thread: ThreadId, agent: str) -> int:
    import anyio

    from shoal.surfaces.cli.link import open_link

    async with open_link(context, thread, channel="local") as (link, chosen), anyio.create_task_group() as tasks:
        if sys.stdin.isatty() and sys.stdout.isatty():
            from shoal.surfaces.cli.terminal_screen import TerminalScreen

            screen = TerminalScreen()
            conversation = TerminalChat(link, chosen, agent, screen)
            screen.line(f"{chosen} in {link.place}. /help lists the commands, Ctrl-D leaves.")
            with screen.shown(conversation):
                tasks.start_soon(conversation.follow)
                while (line := await screen.read()) is not None and await conversation.type(line):
                    pass
                tasks.cancel_scope.cancel()
            return 0
        conversation = TerminalChat(link, chosen, agent, ChatScreen())
        tasks.start_soon(conversation.follow)
        await conversation.opened.wait()
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if not line.startswith("/"):
                await conversation.quiet.wait()
            if not await conversation.type(line):
                break
        await conversation.quiet.wait()
        tasks.cancel_scope.cancel()
        for approval in conversation.questions:
            print(f"shoal: a question waits: `shoal approvals allow {approval}` or deny.", file=sys.stderr)
        return 1 if conversation.questions else 0
    return 0


NO_TURN = TurnId("")
RECAP_EVENTS = 40
"""How many earlier events the chat shows when it opens."""

HELP = """\
/stop            end the running turn; /stop all drops waiting prompts too
/steer TEXT      hand TEXT to the running turn
/new             start anew: the agent forgets this conversation, the journal does not
/status          how things stand
/allow, /deny    answer the oldest question; /allow thread allows the same for the whole thread
/context, /thread, /tasks, /model, /agent, /settings
                 as in any chat; each alone tells what it can do
/quit            leave"""

ANSWERS = {"y": "allow", "yes": "allow", "t": "thread", "n": "deny", "no": "deny"}


class ChatScreen:
    """Where the chat is shown: this one, over a pipe, prints finished lines and nothing else."""

    def line(self, text: str) -> None:
        """Show finished lines."""
        print(text, flush=True)

    def partial(self, text: str) -> None:
        """Show the line of the answer that is being written; empty when there is none."""

    def status(self, text: str) -> None:
        """Show what the agent does; empty when it is idle."""

    def question(self, text: str) -> None:
        """Show that an answer is waited for; empty when it is given."""


class TerminalChat:
    """A thread on a screen."""

    def __init__(self, link: "Link", thread: ThreadId, agent: str, screen: ChatScreen) -> None:
        self.link = link
        self.thread = thread
        self.agent = agent
        self.screen = screen
        self.questions: dict[ApprovalId, ApprovalRequested] = {}
        self.quiet = asyncio.Event()
        """Set while nothing is to be expected: no turn runs, or it waits for an answer."""
        self.opened = asyncio.Event()
        """Set when the past is shown."""
        self._sent: set[str] = set()
        self._sending = ""
        self._heard: set[str] = set()
        """Messages that were taken up while one was on its way: its id may be known here after that."""
        self._turn = NO_TURN
        self._known_seq = 0
        self._answer = StreamedAnswer(screen)
        self._usage = Usage()

    async def follow(self) -> None:
        """Show what happens until Shoal stops; first, what was said before."""
        standing = await self.link.standing()
        if standing is not None:
            self._known_seq = standing.last_seq
            self._turn = standing.open_turn
        if self._known_seq == 0:
            self._update_state()
            self.opened.set()
        with self.link.posts(self.show_post):
            async for item in self.link.watch(max(0, self._known_seq - RECAP_EVENTS)):
                match item:
                    case LiveEvent(data=TextStreamed(text=text, step=step)):
                        self._answer.stream(text, step)
                    case LiveEvent(data=StatusChanged(state=state, text=text)):
                        self.screen.status("" if state == "idle" else printable(text or state))
                    case Event():
                        self._take_event(item)
                    case _:
                        pass

    async def type(self, line: str) -> bool:
        """Do what a typed line says; False to leave. Failures are shown."""
        text = line.strip()
        try:
            if self.questions and text.lower() in ANSWERS:
                await self._decide(ANSWERS[text.lower()])
            elif text.startswith("/"):
                return await self._command(text)
            elif text:
                await self._send(text)
        except ShoalError as error:
            self.screen.line(f"! {printable(str(error))}")
        return True

    @property
    def is_running(self) -> bool:
        """Whether a turn is at work or a prompt waits for one."""
        return bool(self._turn or self._sent)

    async def stop(self, *, all_queued: bool = False) -> None:
        """End the running turn, and drop the prompts that wait behind it if wanted."""
        if not await self.link.abort(all_queued=all_queued):
            self.screen.line("Nothing is running.")
        if all_queued:
            self._sent.clear()
            self._update_state()

    # ---- what is typed ----

    async def _command(self, text: str) -> bool:
        name, _, rest = text.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/stop":
                await self.stop(all_queued=rest.strip() == "all")
            case "/steer":
                if not rest.strip():
                    self.screen.line("Say what: /steer TEXT")
                elif not await self.link.steer(rest.strip()):
                    self.screen.line("Nothing is running that could be steered; send it as a message.")
            case "/new":
                try:
                    await self.link.clear()
                except NotFound:
                    self.screen.line("Nothing was said here yet.")
            case "/status":
                standing = await self.link.standing()
                lines = [f"thread   {self.thread}", f"runs in  {self.link.place}"]
                if standing is not None:
                    doing = "a turn is open" if standing.open_turn else "idle"
                    lines.append(f"agent    {standing.agent or self.agent or 'the default one'}")
                    lines.append(f"state    {doing}, {standing.queued} waiting, {standing.last_seq} events")
                used = f"{self._usage.input_tokens} in, {self._usage.output_tokens} out"
                self.screen.line("\n".join([*lines, f"tokens   {used} since this chat was opened"]))
            case "/allow" | "/deny":
                wanted = "thread" if rest.strip() == "thread" else "allow"
                await self._decide("deny" if name == "/deny" else wanted)
            case "/help":
                self.screen.line(HELP)
            case _:
                answer = await self.link.command(text)
                if answer:
                    self.screen.line(printable(answer))
        return True

    async def _send(self, text: str) -> None:
        self.quiet.clear()
        self._sending = text
        self._heard.clear()
        try:
            message_id = await self.link.send(text, self.agent)
            if not message_id:
                self.screen.line("Busy: too many prompts wait. /stop ends the running turn, /steer TEXT reaches it.")
            elif message_id not in self._heard:
                self._sent.add(message_id)
        finally:
            self._sending = ""
            self._update_state()

    async def _decide(self, answer: str) -> None:
        if not self.questions:
            self.screen.line("Nothing waits for an answer.")
            return
        approval = next(iter(self.questions))
        try:
            scope = "thread" if answer == "thread" else "once"
            await self.link.decide(approval, allow=answer != "deny", scope=scope)
        except InvalidInput as refused:  # the question stays open
            self.screen.line(f"! {printable(str(refused))}")
            return
        except (NotFound, Conflict, Gone) as error:
            self.screen.line(f"! {printable(str(error))}")
        self.questions.pop(approval, None)
        self._update_state()

    # ---- what happens ----

    def show_post(self, post: OutboundPost) -> None:
        """Show what the agent posted besides its answers and questions, which are shown as they happen."""
        if post.kind != "card" and ":reply:" not in post.key:
            self._answer.cut()
            self.screen.line(printable(post.markdown) + (f" [{post.file}]" if post.file else ""))

    def _take_event(self, event: Event) -> None:
        match event.data:
            case TurnStarted():
                self._turn = event.turn
            case ApprovalRequested() as request:
                self.questions[request.approval_id] = request
            case ApprovalSettled(approval_id=approval):
                self.questions.pop(approval, None)
            case TurnFinished() as finished:
                self._usage = self._usage + finished.usage
                self._turn = NO_TURN
            case _:
                pass
        if event.seq <= self._known_seq:
            asked = next(iter(self.questions.values()), None)
            if isinstance(event.data, (UserSaid, AssistantSaid)) or event.data is asked:
                for line in event_lines(event):
                    self.screen.line(line)
        else:
            self._show(event)
        if isinstance(event.data, UserSaid):
            if self._sending:
                self._heard.add(event.data.message_id)
            if event.data.message_id in self._sent:
                self._sent.discard(event.data.message_id)
                self._turn = event.turn
        if event.seq >= self._known_seq:
            self._update_state()
            self.opened.set()

    def _update_state(self) -> None:
        """Note whether anything is to be expected without a person's doing, and which question is open."""
        if self.is_running and not self.questions:
            self.quiet.clear()
        else:
            self.quiet.set()
        request = next(iter(self.questions.values()), None)
        self.screen.question(f"allow {printable(request.tool)}?" if request else "")

    def _show(self, event: Event) -> None:
        match event.data:
            case UserSaid(message_id=message_id, text=text):
                if message_id not in self._sent and text != self._sending:
                    self._lines(event)
            case AssistantSaid() as said:
                self._answer.end(said.text)
                for call in said.tool_calls:
                    self.screen.line(f"→ {call_line(call)}")
            case ToolFinished() as result:
                for line in result_lines(result):
                    self.screen.line(line)
            case Failed():
                pass  # the turn's end says it
            case TurnFinished() as finished:
                self._answer.finish(finished)
                self.screen.status("")
            case _:
                self._lines(event)

    def _lines(self, event: Event) -> None:
        self._answer.cut()
        for line in event_lines(event):
            self.screen.line(line)


class StreamedAnswer:
    """The agent's words: streamed first, then sent whole; each is shown once."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._step = 0
        self._streamed = ""
        self._shown = 0
        self._said = ""

    def stream(self, text: str, step: int) -> None:
        """A piece of the answer; complete lines are printed, the last one stays open."""
        if step != self._step:
            self.cut()
            self._step = step
        self._streamed += text
        if SILENT.startswith(self._streamed.strip()):
            return
        whole = self._streamed.rfind("\n") + 1
        if whole > self._shown:
            self._screen.line(printable(self._streamed[self._shown : whole - 1]))
            self._shown = whole
        self._screen.partial(printable(self._streamed[self._shown :]))

    def end(self, text: str) -> None:
        """A model call has ended with this text."""
        self._said = text if self._said == "" else self._said + text
        if text.strip() == SILENT:
            self._streamed = ""
        elif text and self._streamed and text.startswith(self._streamed[: self._shown]):
            self._streamed = text
        elif text.strip():
            self.cut()
            self._streamed = text
        self.cut()

    def cut(self) -> None:
        """Print what is left of the unfinished line."""
        rest = self._streamed[self._shown :].rstrip()
        self._screen.partial("")
        if rest:
            self._screen.line(printable(rest))
        self._streamed, self._shown = "", 0

    def finish(self, finished: TurnFinished) -> None:
        """The turn has ended: show its reply if it is none of the agent's last words, and how it ended."""
        self.cut()
        reply = finished.reply.strip()
        if finished.outcome == "failed":
            self._screen.line(f"! {printable(reply)}")
        elif reply and not self._said.strip().endswith(reply):
            self._screen.line(printable(reply))
        elif not reply and finished.outcome == "done":
            self._screen.line("(the agent chose to say nothing)")
        if finished.outcome == "aborted":
            self._screen.line("Stopped.")
        self._said = ""
