"""Asks the questions of `shoal setup` at a terminal. Text that may be a key is not echoed, even if it is pasted."""

import os
import shutil
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import click

from shoal.setup.choices import kind_of_secret, looks_secret
from shoal.surfaces.cli.output import echo, is_dumb, printable, wrapped

CHOICES_SHOWN = 15


def ask_line(question: str, default: str = "", *, is_secret: bool = False, may_be_empty: bool = False) -> str:
    """Read a line. An empty line means the default. Unless `is_secret`, text that looks like an API key is rejected.

    Raises click.Abort at the end of the input, and KeyboardInterrupt.
    """
    shown = f"{question} [{default}]: " if default else f"{question}: "
    while True:
        text = " ".join(_read(shown, is_secret=is_secret).split()) or default
        if not is_secret and (kind := kind_of_secret(text)):
            echo(f"This looks like {kind}, which does not belong here. Shoal did not store the input.")
        elif text or may_be_empty:
            return text


def ask_yes(question: str, *, default: bool) -> bool:
    hint = "Y/n" if default else "y/N"
    while True:
        answer = ask_line(f"{question} [{hint}]", may_be_empty=True).lower()
        if answer in ("", "y", "yes", "n", "no"):
            return answer.startswith("y") if answer else default
        echo("Answer y or n.")


def ask_from(names: Sequence[str], question: str, default: str) -> str:
    """Ask for a name from a list. Accepts the number or the full name of an entry, or a unique part of the name.

    A part that matches several names narrows the list. An unknown name is accepted after confirmation.
    """
    shown = list(names)
    while True:
        for number, name in enumerate(shown[:CHOICES_SHOWN], 1):
            echo(f"  {number:>2}  {name}")
        if len(shown) > CHOICES_SHOWN:
            echo(f"      and {len(shown) - CHOICES_SHOWN} more: type part of a name, or ? for all")
        text = ask_line(question, default)
        listed = shown[:CHOICES_SHOWN]
        if text.isdecimal() and 1 <= int(text) <= len(listed):
            return listed[int(text) - 1]
        if text in names or text == default:
            return text
        if text == "?":
            echo("\n".join(f"  {name}" for name in names))
            shown = list(names)
            continue
        matches = [name for name in names if all(part in name.lower() for part in text.lower().split())]
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown = matches
        elif ask_yes(f"{printable(text)} is not in the list. Use it anyway?", default=False):
            return text
        else:
            shown = list(names)


@contextmanager
def typing_unseen() -> Generator[None]:
    """Hide the rest of a pasted key by disabling echo between questions."""
    if not _draws():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    unseen = [*before]
    unseen[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, unseen)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _draws() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not is_dumb()


def _read(shown: str, *, is_secret: bool) -> str:
    if not _draws():
        return str(
            click.prompt(shown.removesuffix(": "), default="", show_default=False, hide_input=is_secret, type=str)
        )
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.layout.processors import ConditionalProcessor, PasswordProcessor
    from prompt_toolkit.output.color_depth import ColorDepth
    from prompt_toolkit.output.vt100 import Vt100_Output

    def size() -> Size:
        columns, lines = shutil.get_terminal_size()
        return Size(rows=lines, columns=columns)

    unseen = Condition(lambda: is_secret or looks_secret(get_app().current_buffer.text))
    session: PromptSession[str] = PromptSession(
        output=Vt100_Output(sys.stdout, size, term=os.environ.get("TERM"), enable_cpr=False),
        input_processors=[ConditionalProcessor(PasswordProcessor(), unseen)],
        color_depth=ColorDepth.from_env(),
    )
    try:
        *above, last = wrapped(shown.rstrip(), shutil.get_terminal_size().columns).split("\n")
        for line in above:
            echo(line)
        return session.prompt(f"{last} ")
    except EOFError as error:
        raise click.Abort from error
