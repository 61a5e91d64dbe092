"""The screen of `shoal chat` in a terminal: finished lines scroll above a live part and a prompt.

The live part is redrawn when it changes. It shows the unfinished answer as Markdown, the running calls with the end
of their output, the turn's activity, and the pending approval. Finished lines are printed once, with escape
sequences, and never redrawn.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Literal

from prompt_toolkit import ANSI, Application, PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from prompt_toolkit.styles import Style

from shoal.installation import as_typed
from shoal.kernel.commands import CommandSpec
from shoal.kernel.events import ApprovalRequested, ToolFinished
from shoal.kernel.home import Home
from shoal.kernel.messages import ToolCall
from shoal.markdown.unfinished import closed
from shoal.surfaces.cli.chat import COMMANDS, ChatScreen, TerminalChat
from shoal.surfaces.cli.completion import agent_names, words_of
from shoal.surfaces.cli.output import VERBATIM, ending_mark, printable, request_lines, span
from shoal.surfaces.cli.terminal_markdown import cropped, pieces, rows, styled, styled_width, whole_blocks, wrapped

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAME_SECONDS = 0.2
PRINT_SECONDS = 0.02
"""Time in seconds to collect output before printing it."""
THINKING_LINES = 6
"""Maximum number of lines of the model's thinking that are shown. Only its last THINKING_CHARS characters are shown."""
THINKING_CHARS = 2000
OUTPUT_LINES = 6
ERROR_LINES = 4
GOES_ON = "    ↪ "
"""Prefix of the continuation of a line that is wider than the screen."""
BELOW_LINES = 6
"""Number of screen rows that are reserved for the prompt and the lines below it."""
HISTORY_BYTES_MAX = 262_144
"""Maximum size of the input history. When a chat starts with a longer history, the older half is dropped."""
Group = Literal["said", "call", "line"]


class TerminalScreen(ChatScreen):
    def __init__(self, home: Home, commands: Iterable[CommandSpec]) -> None:
        self._home = home
        self._conversation: TerminalChat | None = None
        self._changed = asyncio.Event()
        self._last: Group | None = None
        self._drawn: list[str] = []
        """Lines above the prompt as they were last drawn. `_columns` is the width of the screen at that time."""
        self._columns = 0
        self._colour = not os.environ.get("NO_COLOR")
        self._keys = KeyBindings()
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=self._toolbar,
            key_bindings=self._keys,
            multiline=True,
            prompt_continuation="  ",
            history=chat_history(home.root / "chat_history"),
            completer=ChatCompleter(home, commands),
            complete_while_typing=False,
            style=Style.from_dict({"bottom-toolbar": "noreverse"}),
        )

        self._session.app.before_render += self._unwrap

    @contextmanager
    def shown(self, conversation: TerminalChat) -> Generator[None]:
        """Bind the keys to a conversation. Until the context exits, output is printed above the prompt."""
        self._conversation = conversation

        @Condition
        def is_asked() -> bool:
            return bool(conversation.questions) and not get_app().current_buffer.text

        def answer(event: KeyPressEvent) -> None:
            event.app.exit(
                result=str(event.key_sequence[0].key)
            )  # ends the prompt like a typed line, so later keys go to the next prompt

        for key in ("y", "t", "n"):
            self._keys.add(key, filter=is_asked)(answer)

        @self._keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.complete_state is None:
                event.current_buffer.validate_and_handle()
            else:
                event.current_buffer.complete_state = None

        @self._keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        has_text = Condition(lambda: bool(get_app().current_buffer.text))

        @self._keys.add("c-c", filter=has_text)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.reset()

        @self._keys.add("c-c", filter=~has_text)
        async def _(event: KeyPressEvent) -> None:
            if conversation.is_running:
                await conversation.stop()
            else:
                await run_in_terminal(lambda: print("Press Ctrl-D or type /quit to exit."))

        with StdoutProxy(PRINT_SECONDS, raw=True) as proxy, redirect_stdout(proxy), redirect_stderr(proxy):
            yield

    async def read(self) -> str | None:
        """Return the next typed line, or None after Ctrl-D."""
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None
        finally:
            self._last = None

    async def animate(self) -> None:
        """Redraw the elapsed times while a turn runs. Never returns."""
        while True:
            self._changed.clear()
            if self._conversation is not None and self._conversation.is_running:
                self._session.app.invalidate()
                await asyncio.sleep(FRAME_SECONDS)
            else:
                await self._changed.wait()

    # ---- finished lines ----

    def line(self, text: str) -> None:
        self._print("line", wrapped(text, self.width))

    def show_answer(self, markdown: str) -> None:
        if text := markdown.strip("\n"):
            self._print("said", rows(text, self.width, colour=self._colour))

    def show_notice(self, markdown: str) -> None:
        self.show_answer(printable(as_typed(markdown)))

    def thought(self, seconds: float) -> None:
        took = f" for {span(int(seconds))}" if seconds >= 1 else ""
        self._print("line", [self._faint(cropped(f"Thought{took}. /thinking shows it.", self.width))])

    def finished(self, markdown: str) -> int:
        return whole_blocks(markdown)

    def asked(self, call: ToolCall) -> None:
        """Show nothing. The call appears when it runs or needs approval."""

    def wants(self, request: ApprovalRequested) -> None:
        lines: list[str] = []
        for line in request_lines(request):
            if line.startswith(VERBATIM):
                parts = pieces(line.removeprefix(VERBATIM), self.width - len(VERBATIM))
                lines += [f"{GOES_ON if number else VERBATIM}{part}" for number, part in enumerate(parts)]
            else:
                lines += wrapped(line, self.width)
        self._print("line", lines)

    def ended(self, result: ToolFinished, label: str, seconds: float) -> None:
        took = f"stopped after {span(seconds)}" if result.stopped and seconds else span(seconds) if seconds else ""
        mark = ending_mark(result)
        if result.staged:
            took = "staged, not done"
        if result.exit_code:
            took = f"exit code {result.exit_code}{took and f', {took}'}"
        ending = f"{mark} {cropped(label, self.width - len(took) - 6)}"
        colour = {"✓": "32", "○": "33"}.get(mark, "31")
        lines = [f"{self._coloured(colour, mark)}{ending[1:]}  {self._faint(took)}".rstrip()]
        said = printable(result.for_people).strip().splitlines()
        if result.exit_code:  # a command's errors are at the end of its output, before the exit code
            said = said[:-1][-ERROR_LINES:]
        if (result.is_error or result.exit_code) and not result.stopped:
            lines += [self._faint(f"  {cropped(line, self.width - 2)}") for line in said[:ERROR_LINES]]
        self._print("call", lines)

    def _print(self, group: Group, lines: Sequence[str]) -> None:
        if group == "said" or group != self._last:
            lines = ["", *lines]
        self._last = group
        print("\n".join(lines), flush=True)

    # ---- the live part ----

    def changed(self) -> None:
        self._changed.set()
        self._session.app.invalidate()

    def _message(self) -> ANSI:
        lines = [""]
        if self._conversation is not None and not self._session.app.is_done:
            lines += self.live_lines(self._conversation)
        self._drawn = lines
        return ANSI("\n".join([*lines, f"{styled('1')('>')} "]))

    def _unwrap(self, app: Application[str]) -> None:
        """Erase lines that wrapped when the screen became narrower, because prompt_toolkit counts only the rows that it
        drew.
        """
        columns = app.output.get_size().columns
        # xterm truncates lines instead of wrapping them
        if columns < self._columns and "XTERM_VERSION" not in os.environ:
            app.output.cursor_up(sum(max(0, styled_width(line) - 1) // columns for line in self._drawn))
            app.output.erase_down()
        self._columns = columns

    def live_lines(self, conversation: TerminalChat) -> list[str]:
        lines: list[str] = []
        if text := conversation.answer.unfinished.strip("\n"):
            lines += [*rows(closed(text), self.width, colour=self._colour), ""]
        for run in conversation.running.values():
            seconds = time.time() - run.since
            took = span(int(seconds)) if seconds >= 1 else ""
            lines.append(f"{_frame()} {cropped(run.label, self.width - len(took) - 6)}  {self._faint(took)}".rstrip())
            written = printable(run.written).expandtabs(4).rstrip().splitlines()
            lines += [self._faint(f"  {cropped(line, self.width - 2)}") for line in written[-OUTPUT_LINES:]]
        if thinking := conversation.thinking.text.strip():
            thinking_rows = wrapped(thinking[-THINKING_CHARS:], self.width - 2)[-THINKING_LINES:]
            lines += [f"{_frame()} {conversation.doing}", *(self._faint(f"  {row}") for row in thinking_rows), ""]
        if conversation.running:
            lines.append("")
        elif not lines and not conversation.questions and (doing := conversation.doing):
            lines += [*wrapped(f"{_frame()} {doing}", self.width), ""]
        lines = lines[-max(3, shutil.get_terminal_size().lines - BELOW_LINES) :]
        if request := next(iter(conversation.questions.values()), None):
            keys = ["[y] once", *([] if request.covers.uncovered else ["[t] in this thread"]), "[n] no"]
            card, questions = request.item.card, conversation.questions.values()
            calls = sum(question.item.card == card for question in questions) if card else 1
            asked = f"Allow {printable(request.tool)}?  {'  '.join(keys)}"
            if calls > 1:
                asked = f"Allow these {calls} calls?  [y] all  [n] none  or write: allow 1 {request.item.total}"
            lines.append(styled("1")(cropped(asked, self.width)))
        return lines

    def _toolbar(self) -> ANSI:
        is_running = self._conversation is not None and self._conversation.is_running
        ending = "Ctrl-C stops the turn" if is_running else "Ctrl-D exits"
        words = f" /help · Tab completes · Alt-Enter starts a new line · {ending}"
        return ANSI(self._faint(cropped(words, self.width)))

    @property
    def width(self) -> int:
        """The terminal's width minus one, because some terminals wrap after the last column."""
        return max(10, shutil.get_terminal_size().columns - 1)

    def _coloured(self, number: str, text: str) -> str:
        return styled(number)(text) if self._colour and text else text

    def _faint(self, text: str) -> str:
        return self._coloured("90", text)


def _frame() -> str:
    return FRAMES[int(time.time() / FRAME_SECONDS) % len(FRAMES)]


def chat_history(file: Path) -> FileHistory:
    """Open the input history of earlier chats. Only the owner of the file can read it. A long history is cut to
    its newer half.
    """
    file.touch(0o600)
    content = file.read_bytes()
    if len(content) > HISTORY_BYTES_MAX:
        _, entry, rest = content[-HISTORY_BYTES_MAX // 2 :].partition(b"\n# ")
        file.write_bytes(entry + rest)
    return FileHistory(file)


class ChatCompleter(Completer):
    """Completes commands and their arguments, agent names, and files in the agents' workspaces and the current
    directory.
    """

    def __init__(self, home: Home, commands: Iterable[CommandSpec]) -> None:
        self._home = home
        self._commands = {spec.name: spec for spec in commands}
        self._files = PathCompleter(get_paths=self._folders, expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        word = "" if not before or before[-1].isspace() else before.split()[-1]
        name, space, _ = before.partition(" ")
        if before.startswith("/") and not space:
            about = {**{name: spec.description for name, spec in self._commands.items()}, **COMMANDS}
            words_about = {f"/{key}": text for key, text in about.items()}
        elif before.startswith("/"):
            spec = self._commands.get(name[1:])
            words_about = dict.fromkeys(words_of(spec.usage) if spec is not None else (), "")
            if name in ("/agent", "/thread", "/settings"):
                words_about |= dict.fromkeys(agent_names(self._home.root), "agent")
        else:
            mark = "@" if word.startswith("@") else ""
            words_about = {f"{mark}{agent}": "agent" for agent in agent_names(self._home.root)} if word else {}
        for text, meta in words_about.items():
            if text.startswith(word):
                yield Completion(text, -len(word), display_meta=meta)
        if (word and space) or not before.startswith("/"):
            yield from self._files.get_completions(Document(word), complete_event)

    def _folders(self) -> list[str]:
        workspaces = [self._home.agent(name) / "workspace" for name in agent_names(self._home.root)]
        return [*(str(folder) for folder in workspaces if folder.is_dir()), "."]
