"""`shoal chat`: a conversation in the terminal, or over a pipe."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.surfaces.cli.conversation import Conversation
    from shoal.surfaces.cli.link import Link

THREAD = ThreadId("terminal:local:main")
"""Where a chat goes on unless told."""


@click.command()
@click.option("--thread", default=str(THREAD), show_default=True, help="The conversation to go on with.")
@click.option("--agent", default="", help="Who answers in a new conversation; without it the default agent.")
@click.pass_obj
def chat(place: Place, thread: str, agent: str) -> int:
    """Chat in the terminal: /help lists the commands; y, t and n answer the agent's questions.

    With standard input that is no terminal each line is a message, and the chat ends when all are answered.
    """
    return asyncio.run(_chat(place, parse_thread_id(thread), agent))


async def _chat(place: Place, thread: ThreadId, agent: str) -> int:
    from shoal.surfaces.cli.link import open_link

    async with open_link(place, thread, channel="local") as (link, chosen):
        if sys.stdin.isatty() and sys.stdout.isatty():
            return await _in_terminal(link, chosen, agent)
        return await _over_pipe(link, chosen, agent)


async def _in_terminal(link: "Link", thread: ThreadId, agent: str) -> int:
    import anyio

    from shoal.surfaces.cli.conversation import Conversation
    from shoal.surfaces.cli.terminal_screen import TerminalScreen

    screen = TerminalScreen()
    conversation = Conversation(link, thread, agent, screen)
    screen.line(f"{thread} in {link.place}. /help lists the commands, Ctrl-D leaves.")
    with screen.shown(conversation):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(conversation.follow)
            while (line := await screen.read()) is not None and await conversation.type(line):
                pass
            tasks.cancel_scope.cancel()
    return 0


async def _over_pipe(link: "Link", thread: ThreadId, agent: str) -> int:
    import anyio

    from shoal.surfaces.cli.conversation import Conversation

    conversation = Conversation(link, thread, agent, _PipeScreen())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(conversation.follow)
        await conversation.opened.wait()
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if not line.startswith("/"):
                await conversation.quiet.wait()
            if not await conversation.type(line):
                break
        await conversation.quiet.wait()
        tasks.cancel_scope.cancel()
    return _left_waiting(conversation)


def _left_waiting(conversation: "Conversation") -> int:
    for approval in conversation.questions:
        print(f"shoal: a question waits: `shoal approvals allow {approval}` or deny.", file=sys.stderr)
    return 1 if conversation.questions else 0


class _PipeScreen:
    """Prints finished lines and nothing else."""

    def line(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)

    def partial(self, text: str) -> None:
        """Only whole lines are printed."""

    def status(self, text: str) -> None:
        """What the agent does is not printed."""

    def question(self, text: str) -> None:
        """The question itself was printed."""
