"""`shoal ask`: run one turn and print its reply on standard output."""

import asyncio
import logging
import os
import re
import select
import shutil
import sys
import time
from contextlib import aclosing, suppress
from typing import Literal

import click
import msgspec

from shoal.kernel.effect_notes import DROPPED, NOT_OFFERED
from shoal.kernel.errors import Conflict, Gone, InvalidInput, ShoalError
from shoal.kernel.events import (
    ApprovalRequested,
    AssistantSaid,
    Event,
    Failed,
    LimitReached,
    LiveData,
    LiveEvent,
    Outcome,
    RetryScheduled,
    StatusChanged,
    TextStreamed,
    ThinkingStreamed,
    ToolFinished,
    TurnFinished,
    UserSaid,
)
from shoal.kernel.ids import ThreadId, TurnId, parse_thread_id
from shoal.kernel.messages import Usage
from shoal.kernel.permissions import CardItem
from shoal.markdown.tables import width_of
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import (
    adds_detail,
    echo,
    limit_words,
    print_json,
    printable,
    request_lines,
    result_lines,
    status_words,
    timed,
    why,
)
from shoal.surfaces.cli.thread_client import ThreadClient, open_thread

INPUT_CHARS_MAX = 1_000_000
"""Maximum number of characters that are read from standard input. No model accepts more in one message."""
STATUS_SECONDS = 0.5
"""Seconds between updates of the status line."""
THINKING_CHARS = 500
"""Maximum number of characters of the model's thinking that the status line shows, counted from its end."""
INPUT_SECONDS = 3.0
"""Seconds to wait for input before a notice says that standard input is being read."""
NOTHING_ASKED = "The message is empty. Pass TEXT, or pipe it in."


class WaitingApproval(msgspec.Struct, frozen=True):
    id: str
    tool: str
    shown: str


class AskResult(msgspec.Struct, frozen=True):
    """The result of `shoal ask`. The outcome `waiting` means that the turn needs an approval."""

    thread: ThreadId
    turn: TurnId
    reply: str
    steps: int
    usage: Usage
    outcome: Outcome | Literal["waiting"]
    approvals: tuple[WaitingApproval, ...] = ()

    def as_json(self) -> dict[str, object]:
        fields: dict[str, object] = {**msgspec.structs.asdict(self), "usage": msgspec.structs.asdict(self.usage)}
        if not self.approvals:
            del fields["approvals"]
        return fields


@command(example='git diff | shoal ask "What could go wrong here?"')
@click.argument("text", nargs=-1)
@click.option("--thread", help="Continue this thread. [default: a new thread]")
@agent_option("Agent that answers. [default: the default agent]")
@click.option("--json", "as_json", is_flag=True, help="Print thread, turn, reply, steps, usage and outcome as JSON.")
def ask(context: CommandContext, text: tuple[str, ...], thread: str | None, agent: str, as_json: bool) -> int:
    """Send one message and print the reply. If input is piped, it is appended to TEXT. Without TEXT, the piped input is
    the message.

    Ctrl-C stops the turn. Exits with 1 if the turn failed, was stopped, reached a limit, or waits for an approval
    that cannot be given at this terminal.
    """
    asked_with = "" if text == ("-",) else " ".join(text)
    reads = text == ("-",) or not sys.stdin.isatty()
    piped = _read_input() if reads else ""
    question = f"{asked_with}\n\n{piped}" if asked_with and piped.strip() else asked_with or piped
    if not question.strip():
        raise InvalidInput(NOTHING_ASKED) if reads else click.UsageError(NOTHING_ASKED)
    chosen = parse_thread_id(thread) if thread else None
    if not context.debug:  # print errors as one line
        logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger("shoal.terminal").addHandler(logging.StreamHandler())
    asked = asyncio.run(_ask(context, question, chosen, agent, as_json=as_json))
    if as_json:
        print_json(asked.as_json())
    return 0 if asked.outcome == "done" else 1


def _read_input() -> str:
    with suppress(OSError, ValueError):  # select does not support every kind of standard input
        if not select.select([sys.stdin], [], [], INPUT_SECONDS)[0]:
            echo("shoal: reading standard input. Use `< /dev/null` to skip it.", sys.stderr)
    text = sys.stdin.read(INPUT_CHARS_MAX + 1)
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # Python decodes invalid UTF-8 to surrogates
        raise InvalidInput("Standard input is not UTF-8 text. Include the file's path in the message instead.")
    if len(text) > INPUT_CHARS_MAX:
        raise InvalidInput(
            f"Standard input is longer than {INPUT_CHARS_MAX:,} characters. Put the text in a file, and include the "
            "file's path in the message instead."
        )
    return text


async def _ask(
    context: CommandContext, question: str, thread: ThreadId | None, agent: str, *, as_json: bool
) -> AskResult:
    async with open_thread(context, thread, channel="ask") as (link, chosen):
        standing = await link.standing()
        message_id = await link.send(question, agent)
        if not message_id:
            raise ShoalError(f"{chosen} has too many prompts waiting. Wait for an answer, or ask in another thread.")
        turn = _Turn(link, chosen, message_id, as_json=as_json)
        asked = await turn.follow(standing.last_seq if standing else 0)
    if asked is not None:
        return asked
    raise ShoalError(
        f"Shoal stopped before it could reply in {chosen}. Run `shoal chat --thread {chosen}` to continue."
    )


class _Turn:
    def __init__(self, link: ThreadClient, thread: ThreadId, message_id: str, *, as_json: bool) -> None:
        self.link = link
        self.thread = thread
        self.message_id = message_id
        self.as_json = as_json
        self.streams = not as_json and sys.stdout.isatty()
        self.may_ask = not as_json and sys.stdin.isatty() and sys.stderr.isatty()
        self.turn = TurnId("")
        self.streamed = ""
        self.words = WholeWords(shutil.get_terminal_size().columns if self.streams else 0)
        self.failure = self.limit = ""
        self.waiting: list[WaitingApproval] = []
        self.staged: list[ApprovalRequested] = []
        self.done: AskResult | None = None
        """The turn's result, stored here while its accepted staged calls run."""
        self.steps = 0
        self.usage = Usage()
        self.status = StatusLine(is_on=not as_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")

    async def follow(self, after: int) -> AskResult | None:
        """Return the result, or None if Shoal stops first. Cancellation stops the turn."""
        try:
            async with aclosing(self.link.watch(after)) as items:
                async for item in items:
                    asked = await self.take(item)
                    if asked is not None:
                        return asked
        except asyncio.CancelledError:
            if self.turn:
                await self.link.abort(all_queued=False)
            raise
        finally:
            self.status.clear()
        return None

    def result(self, outcome: Literal["failed", "waiting"], *approvals: WaitingApproval) -> AskResult:
        return AskResult(self.thread, self.turn, "", self.steps, self.usage, outcome, approvals)

    async def take(self, item: Event | LiveEvent) -> AskResult | None:
        if isinstance(item, LiveEvent):
            if item.turn == self.turn and self.turn:
                self._show(item.data)
            return None
        if self.done is not None and isinstance(item.data, Failed) and item.data.kind == DROPPED:
            echo(f"shoal: {item.data.message}", sys.stderr)
            return self.done
        if not self.turn and isinstance(item.data, UserSaid) and item.data.message_id == self.message_id:
            self.turn = item.turn
        if not self.turn or item.turn != self.turn:
            return None
        self.status.clear()
        match item.data:
            case AssistantSaid() as said:
                self.steps += 1
                self.usage = self.usage + said.usage
                if self.streamed and said.tool_calls:
                    print(self.words.take("\n"))
                    self.streamed = ""
            case Failed(kind=kind, message=message) if kind in (DROPPED, NOT_OFFERED):
                echo(f"shoal: {message}", sys.stderr)
            case Failed(message=message, detail=detail):
                self.failure = f"{message} ({detail.rstrip('.')})" if adds_detail(message, detail) else message
            case RetryScheduled(message=message, detail=detail):  # `shoal ask` fails instead of waiting for a retry
                await self.link.abort(all_queued=False)
                echo(f"shoal: {message} ({detail.rstrip('.')})", sys.stderr)
                return self.result("failed")
            case LimitReached(limit=limit, detail=detail):
                self.limit = limit_words(limit, detail)
            case ApprovalRequested(item=CardItem(staged=True)) as request:  # ask after the answer is printed
                self.staged.append(request)
            case ApprovalRequested() as request:
                return await self._decide(request)
            case ToolFinished() as result if self.done is not None:
                echo("\n".join(result_lines(result)), sys.stderr)
            case TurnFinished() as finished:
                return await self._decide_staged(self.done or self._finish(finished))
            case _:
                pass
        return None

    def _show(self, data: LiveData) -> None:
        match data:
            case TextStreamed(text=text) if self.streams:
                self.status.clear()
                self.streamed += text
                print(self.words.take(printable(text)), end="", flush=True)
            case ThinkingStreamed(text=text) if not self.streamed:
                self.status.think(text)
            case StatusChanged() if not self.streamed:
                self.status.show(data)
            case _:
                pass

    async def _decide(self, request: ApprovalRequested) -> AskResult | None:
        shown = printable(request.shown)
        asks = f"{shown}\n{printable(why(request))}"
        if not self.may_ask:
            print(f"shoal: the agent asks to run:\n{asks}", file=sys.stderr)
            self.waiting.append(WaitingApproval(request.approval_id, request.tool, shown))
            if request.item.number < request.item.total:  # events for the card's other calls follow immediately
                return None
            which, id = ("them", request.item.card) if request.item.card else ("it", request.approval_id)
            echo(f"shoal: to allow {which}, run `shoal approvals allow {id}`.", sys.stderr)
            return self.result("waiting", *self.waiting)
        print(f"\nThe agent asks to run:\n{asks}\n[y] allow once, [t] allow in this thread, anything else denies: ",
              end="", file=sys.stderr, flush=True)  # fmt: skip
        answer = (await read_line()).strip().lower()
        scope = "thread" if answer in ("t", "thread") else "once"
        try:
            await self.link.decide(request.approval_id, allow=answer in ("y", "yes", "t", "thread"), scope=scope)
        except (Conflict, Gone) as error:
            echo(f"shoal: {error}", sys.stderr)
        return None

    async def _decide_staged(self, done: AskResult) -> AskResult | None:
        if self.done is not None:  # the accepted calls have run
            return self.done
        if not self.staged:
            return done
        card = self.staged[0].item.card
        lines = [line for request in self.staged for line in request_lines(request)][:-1]
        echo("\n".join(lines), sys.stderr)
        waiting = tuple(
            WaitingApproval(approval.approval_id, approval.tool, printable(approval.shown)) for approval in self.staged
        )
        if not self.may_ask:
            allow, deny = f"`shoal approvals allow {card}`", f"`shoal approvals deny {card}`"
            echo(f"shoal: {allow} runs everything. {deny} discards everything.", sys.stderr)
            return msgspec.structs.replace(done, approvals=waiting)
        print("\n[y] run everything, anything else discards it: ", end="", file=sys.stderr, flush=True)
        does = (await read_line()).strip().lower() in ("y", "yes")
        try:
            decided = await self.link.decide_card(card, allow=does, numbers=())
        except (Conflict, Gone) as error:
            echo(f"shoal: {error}", sys.stderr)
            return done
        echo(f"shoal: {decided.message}", sys.stderr)
        if decided.undo:
            print("[u] undo the file changes now, anything else keeps them: ", end="", file=sys.stderr, flush=True)
            if (await read_line()).strip().lower() in ("u", "undo"):
                echo(f"shoal: {await self.link.command(f'/undo {decided.undo}')}", sys.stderr)
        if not does:
            return done
        self.done, self.turn, self.message_id = done, TurnId(""), f"staged:{card}"
        return None

    def _finish(self, finished: TurnFinished) -> AskResult:
        if not self.as_json and finished.outcome in ("done", "limit"):
            if not finished.reply:
                echo("shoal: the agent chose to say nothing.", sys.stderr)
            elif self.streamed.strip() == finished.reply.strip():
                print(self.words.take("\n").removesuffix("\n"))
            else:
                before = self.words.take("\n") if self.streamed else ""
                print(before + self.words.take(f"{printable(finished.reply)}\n"), end="")
        match finished.outcome:
            case "failed":
                echo(f"shoal: {self.failure or finished.reply}", sys.stderr)
            case "aborted":
                echo("shoal: the turn was stopped.", sys.stderr)
            case "limit":
                echo(f"shoal: {self.limit} Continue with --thread {self.thread}.", sys.stderr)
            case _:
                pass
        return AskResult(self.thread, self.turn, finished.reply, finished.steps, finished.usage, finished.outcome)


class WholeWords:
    """Wraps streamed text between words. A word is printed when it is complete.

    Code blocks are never wrapped. With a width of 0, nothing is wrapped.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._used = 0
        self._held = ""
        self._is_code = False

    def take(self, text: str) -> str:
        """Add a chunk of text. Return the complete words, which can be printed now."""
        if not self._columns:
            return text
        *whole, self._held = re.split(r"(?<=[ \n])", self._held + text)
        shown = ""
        for word in whole:
            if not self._used and word.startswith(("```", "~~~")):
                self._is_code = not self._is_code
            width = width_of(word.rstrip(" \n"))
            if self._used and self._used + width > self._columns and not self._is_code:
                shown, self._used = f"{shown.rstrip(' ')}\n", 0
            shown += word
            self._used = 0 if word.endswith("\n") else self._used + width_of(word)
        return shown


class StatusLine:
    """A line on standard error that shows the turn's activity and its duration. It is erased before other output."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._status = StatusChanged("idle")
        self._since = 0.0
        self._thinking = ""
        self._timer: asyncio.TimerHandle | None = None

    def show(self, status: StatusChanged) -> None:
        self.clear()
        self._status, self._since, self._thinking = status, time.monotonic(), ""
        if self._is_on and status.state not in ("idle", "waiting"):
            self._draw()

    def think(self, text: str) -> None:
        if not self._thinking:
            self._since = time.monotonic()
        self._thinking = f"{self._thinking}{printable(text)}"[-THINKING_CHARS:]
        if self._is_on and self._timer is None:
            self._draw()

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        seconds, columns = time.monotonic() - self._since, shutil.get_terminal_size().columns - 1
        words, thinking = status_words(self._status, seconds), " ".join(self._thinking.split())
        if thinking:
            words = f"{timed('thinking', seconds)}: "
            while thinking and len(words) + width_of(thinking) > columns:
                thinking = thinking[1:]
        shown = f"{words}{thinking}"[:columns]
        print(f"\r\x1b[2K{shown}", end="", file=sys.stderr, flush=True)
        self._timer = asyncio.get_running_loop().call_later(STATUS_SECONDS, self._draw)


async def read_line() -> str:
    """Read a line from the terminal in the event loop. A thread that waits for input would keep the process alive."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not ready.done():
            ready.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), take)
    try:
        return await ready
    finally:
        loop.remove_reader(sys.stdin.fileno())
