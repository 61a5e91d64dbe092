"""The screen of `shoal chat` in a terminal: lines scroll above the answer's unfinished line and a prompt."""

from collections.abc import Generator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

from shoal.surfaces.cli.chat import ChatScreen, TerminalChat

KEYS = "[y] once  [t] in this thread  [n] no"


class TerminalScreen(ChatScreen):
    """Draws with prompt_toolkit."""

    def __init__(self) -> None:
        self._partial = ""
        self._status = ""
        self._question = ""
        self._keys = KeyBindings()
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=lambda: f" {self._status} · /stop ends it" if self._status else " /help",
            key_bindings=self._keys,
        )

    @contextmanager
    def shown(self, conversation: TerminalChat) -> Generator[None]:
        """Bind the keys to a conversation, and print above the prompt while inside."""
        is_asked = Condition(lambda: bool(conversation.questions) and not get_app().current_buffer.text)

        def answer(event: KeyPressEvent) -> None:
            typed = event.key_sequence[0].key
            event.current_buffer.text = str(typed)
            event.current_buffer.validate_and_handle()

        for key in ("y", "t", "n"):
            self._keys.add(key, filter=is_asked)(answer)

        async def interrupt(event: KeyPressEvent) -> None:
            if conversation.is_running:
                await conversation.stop()
            elif event.current_buffer.text:
                event.current_buffer.reset()
            else:
                await run_in_terminal(lambda: print("Ctrl-D or /quit leaves."))

        self._keys.add("c-c")(interrupt)
        with patch_stdout(raw=True):
            yield

    async def read(self) -> str | None:
        """The next line that is typed; None at the end (Ctrl-D)."""
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None

    def partial(self, text: str) -> None:
        """Show the answer's unfinished last line."""
        self._partial = text
        self._session.app.invalidate()

    def status(self, text: str) -> None:
        """Show what the agent does at the bottom."""
        self._status = text
        self._session.app.invalidate()

    def question(self, text: str) -> None:
        """Show which keys answer."""
        self._question = text
        self._session.app.invalidate()

    def _message(self) -> FormattedText:
        parts = [("", f"{self._partial}\n")] if self._partial else []
        if self._question:
            parts.append(("bold", f"{self._question} {KEYS}\n"))
        return FormattedText([*parts, ("bold", "> ")])
