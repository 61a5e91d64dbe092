"""`shoal ask`: one turn, its reply on standard output."""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from shoal.domain.errors import Conflict, Gone, InvalidInput, ShoalError
from shoal.domain.events import (
    ApprovalRequested,
    AssistantSaid,
    Event,
    Failed,
    LimitReached,
    LiveEvent,
    Outcome,
    RetryScheduled,
    TextStreamed,
    TurnFinished,
    UserSaid,
)
from shoal.domain.ids import ThreadId, TurnId, parse_thread_id
from shoal.domain.messages import Usage
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.output import print_json, printable

if TYPE_CHECKING:
    from shoal.surfaces.cli.link import Link


class WaitingApproval(msgspec.Struct, frozen=True):
    """A question to a person that a turn waits for."""

    id: str
    tool: str
    shown: str


class AskResult(msgspec.Struct, frozen=True):
    """What came of it. `waiting` is the outcome of a turn that waits for a person."""

    thread: ThreadId
    turn: TurnId
    reply: str
    steps: int
    usage: Usage
    outcome: Outcome | Literal["waiting"]
    approvals: tuple[WaitingApproval, ...] = ()

    def as_json(self) -> dict[str, object]:
        """As `--json` prints it: every field of the contract, empty ones too."""
        found: dict[str, object] = {**msgspec.structs.asdict(self), "usage": msgspec.structs.asdict(self.usage)}
        if not self.approvals:
            del found["approvals"]
        return found


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("--thread", help="Go on in this thread; without it a new one is made.")
@click.option("--agent", default="", help="Who answers; without it the default agent.")
@click.option("--json", "as_json", is_flag=True, help="Print thread, turn, reply, steps, usage and outcome as JSON.")
@click.pass_obj
def ask(context: CommandContext, text: tuple[str, ...], thread: str | None, agent: str, as_json: bool) -> int:
    """Ask one thing and print the reply. With - the question is read from standard input.

    Ctrl-C stops the turn. Exit 1 when the turn failed, was stopped, came to a limit, or waits for a permission nobody
    here can give.
    """
    question = sys.stdin.read() if text == ("-",) else " ".join(text)
    if not question.strip():
        raise InvalidInput("There is nothing to ask: give a text.")
    chosen = parse_thread_id(thread) if thread else None
    if not context.debug:  # the journal tells what goes wrong, in one line
        logging.getLogger().addHandler(logging.NullHandler())
    asked = asyncio.run(_ask(context, question, chosen, agent, as_json=as_json))
    if as_json:
        print_json(asked.as_json())
    return 0 if asked.outcome == "done" else 1


async def _ask(
    context: CommandContext, question: str, thread: ThreadId | None, agent: str, *, as_json: bool
) -> AskResult:
    from shoal.surfaces.cli.link import open_link

    async with open_link(context, thread, channel="ask") as (link, chosen):
        standing = await link.standing()
        message_id = await link.send(question, agent)
        if not message_id:
            raise ShoalError(f"{chosen} has too many prompts waiting. Wait for an answer, or ask in another thread.")
        turn = _Turn(link, chosen, message_id, as_json=as_json)
        asked = await turn.follow(standing.last_seq if standing else 0)
    if asked is not None:
        return asked
    raise ShoalError(f"Shoal stopped before {chosen} was answered. `shoal chat --thread {chosen}` continues there.")


class _Turn:
    """Follows the turn that answers one message, and prints as it goes."""

    def __init__(self, link: "Link", thread: ThreadId, message_id: str, *, as_json: bool) -> None:
        self.link = link
        self.thread = thread
        self.message_id = message_id
        self.as_json = as_json
        self.streams = not as_json and sys.stdout.isatty()
        self.may_ask = not as_json and sys.stdin.isatty() and sys.stderr.isatty()
        self.turn = TurnId("")
        self.streamed = ""
        self.failure = self.limit = ""
        self.steps = 0
        self.usage = Usage()

    async def follow(self, after: int) -> AskResult | None:
        """The result; None when Shoal stops first. An interrupt ends the turn, as Ctrl-C in a chat does."""
        try:
            async for item in self.link.watch(after):
                asked = await self.take(item)
                if asked is not None:
                    return asked
        except asyncio.CancelledError:
            if self.turn:
                await self.link.abort(all_queued=False)
            raise
        return None

    def result(self, outcome: Literal["failed", "waiting"], *approvals: WaitingApproval) -> AskResult:
        """The result of a turn that has not ended."""
        return AskResult(self.thread, self.turn, "", self.steps, self.usage, outcome, approvals)

    async def take(self, item: Event | LiveEvent) -> AskResult | None:
        """Take in what happens in the thread; the result when it is complete."""
        if isinstance(item, LiveEvent):
            if item.turn == self.turn and self.turn and self.streams and isinstance(item.data, TextStreamed):
                self.streamed += item.data.text
                print(printable(item.data.text), end="", flush=True)
            return None
        if not self.turn and isinstance(item.data, UserSaid) and item.data.message_id == self.message_id:
            self.turn = item.turn
        if not self.turn or item.turn != self.turn:
            return None
        match item.data:
            case AssistantSaid() as said:
                self.steps += 1
                self.usage = self.usage + said.usage
                if self.streamed and said.tool_calls:
                    print()
                    self.streamed = ""
            case Failed(message=message, detail=detail):
                says_more = detail not in message and message not in detail
                self.failure = f"{message} ({detail})" if says_more else message
            case RetryScheduled(message=message, detail=detail):  # nobody is here to wait for it
                await self.link.abort(all_queued=False)
                print(printable(f"shoal: {message} ({detail})"), file=sys.stderr)
                return self.result("failed")
            case LimitReached(limit=limit, detail=detail):
                self.limit = f"{limit} ({detail})" if detail else limit
            case ApprovalRequested() as request:
                return await self._decide(request)
            case TurnFinished() as finished:
                return self._finish(finished)
            case _:
                pass
        return None

    async def _decide(self, request: ApprovalRequested) -> AskResult | None:
        """Ask the person at the terminal; without one the turn is left waiting."""
        shown = printable(request.shown)
        asks = f"{shown}\n{printable(request.reason)}" if request.reason else shown
        if not self.may_ask:
            print(f"shoal: the agent asks to run:\n{asks}", file=sys.stderr)
            print(f"shoal: allow it with `shoal approvals allow {request.approval_id}`.", file=sys.stderr)
            return self.result("waiting", WaitingApproval(request.approval_id, request.tool, shown))
        print(f"\nThe agent asks to run:\n{asks}\n[y] allow once, [t] allow in this thread, anything else denies: ",
              end="", file=sys.stderr, flush=True)  # fmt: skip
        answer = (await read_line()).strip().lower()
        scope = "thread" if answer in ("t", "thread") else "once"
        try:
            await self.link.decide(request.approval_id, allow=answer in ("y", "yes", "t", "thread"), scope=scope)
        except (Conflict, Gone) as error:
            print(f"shoal: {error}", file=sys.stderr)
        return None

    def _finish(self, finished: TurnFinished) -> AskResult:
        if not self.as_json and finished.outcome in ("done", "limit"):
            if not finished.reply:
                print("shoal: the agent chose to say nothing.", file=sys.stderr)
            elif self.streamed.strip() == finished.reply.strip():
                print()
            else:
                print(f"{chr(10) if self.streamed else ''}{printable(finished.reply)}")
        match finished.outcome:
            case "failed":
                print(f"shoal: {printable(self.failure or finished.reply)}", file=sys.stderr)
            case "aborted":
                print("shoal: the turn was stopped.", file=sys.stderr)
            case "limit":
                what = printable(f"the turn ended at a limit: {self.limit}. Go on in --thread {self.thread}.")
                print(f"shoal: {what}", file=sys.stderr)
            case _:
                pass
        return AskResult(self.thread, self.turn, finished.reply, finished.steps, finished.usage, finished.outcome)


async def read_line() -> str:
    """A line from the terminal, without a thread that could keep the program from ending."""
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
