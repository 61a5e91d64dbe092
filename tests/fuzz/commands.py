"""Random shell commands, what bash really runs of them, and whether that was foreseen.

The programs are stand-ins that write down how they were called; every other name leads nowhere. So a command of any
shape can be run, and what ran is compared with the actions that were decided on.
"""

import contextlib
import os
import random
import selectors
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal.domain.permissions import Action
from shoal.permissions.actions import shell_actions
from shoal.permissions.words import quote

RUN_SECONDS_MAX = 3.0
NAMES = ("aa", "bb", "cc", "dd")

_STAND_IN = '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" $\'\\1\' >> "$STAND_IN_LOG"\n'

TOKENS = [
    "aa", "bb", "cc", "dd", " ", " ", " ", " ", "\n", ";", "&", "&&", "||", "|", "(", ")", "{ ", " }", "$(", ")", "`",
    '"', '"', "'", "'", "\\", "\\\n", "#", "$X", "${X}", "$((1))", "<<E\n", "\nE\n", "<<'E'\n", "<<-E\n", "<<<", ">f",
    "<", ">&", "2>&1", "if ", "then ", "fi", "else ", "for i in ", "; do ", "; done", "while ", "case ", " in ",
    "esac", ";;", "!", "[[ ", " ]]", "=", "A=", "[ ", " ]", "*", "{", "}", ",", "..", "<(", ">(", "$", '$"', "$'",
    "\t", "\r", "time ", "coproc ", "function f ", "f() ", "f", "eval ", "é", "\xa0", "\x0b", "~", "@", "%", "^", "-",
    "+", ":", "?", "${X:-", "${", "$((", "))", "((", '\\"', "\\$", "E", "|&", "&>", ">|", "<>", ";&", "in", "then",
    "select ", "until ", "exec ", "#x", "\n#", "1", "X", "-n", '"$(aa)"', "$(aa)", "`aa`", '"`aa`"', "${X:-$(bb)}",
    '"${X:-`bb`}"', "${X:-'}'}", '"${X:-"}"}"', "$[1]", "$(( $(aa) ))", "a[$(aa)]=", "=(", '"\\\n',
    "aa <<E\n$(bb)\nE\n", "aa <<\\E\n$(bb)\nE\n", 'aa <<"E"\n$(bb)\nE\n', ">&'$(aa)'",
]  # fmt: skip
SEGMENTS = [
    "aa", "bb x", 'cc "y z"', "dd 'q'", "aa $X", "A=1 bb", "aa <<E\nx $(bb)\nE\n", "{ aa; }", "(bb)", "$(echo aa)",
    "aa $(bb)", "aa `bb`", "if aa; then bb; fi", "for i in 1 2; do aa $i; done", "case aa in a*) bb;; *) cc;; esac",
    "aa # bb", "aa \\\n x", '"a"a', "a\\a", "aa >f", "<f aa", "2>&1 aa", "! aa", "aa | bb", "aa && bb", "aa || cc",
    "aa & bb", "aa;bb", "aa\nbb", "aa <(bb)", 'aa <<< "$(cc)"', "[[ x == x ]] && aa", "[ x = y ] || bb",
    "f() { aa; }; f", "aa ${X:-bb}", 'aa "${X:-$(cc)}"', "aa $((1+2))", "aa {x,y}", "while aa; do bb; break; done",
    "cd sub", "cd ..", "cd link", ">../f1", ">link/f2 aa", "aa >f3", "(cd sub; aa >f4)", "{ aa; } >f5 2>&1",
    "aa &>f6", "aa >>f7 bb", ">|f8", "aa 2>f9 >&f10", "for i in 1; do cd sub; done", "aa >$X", "aa <>f11",
]  # fmt: skip
GLUE = [" ; ", " | ", " && ", "\n", " & ", "; ", "", " ", " || ", ";;", " #c\n", "\t", "\\\n", " \\\n"]


def random_command(source: random.Random) -> str:
    """A command: tokens at random, or valid pieces put together and then damaged a little."""
    if source.random() < 0.4:
        return "".join(source.choice(TOKENS) for _ in range(source.randint(2, 14)))
    text = "".join(source.choice(SEGMENTS) + source.choice(GLUE) for _ in range(source.randint(1, 4)))
    for _ in range(source.randint(0, 3)):
        at = source.randrange(len(text) + 1)
        kind = source.random()
        if kind < 0.4:
            text = text[:at] + source.choice(TOKENS) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + 1 :]
        else:
            other = source.randrange(len(text) + 1)
            text = text[:at] + text[other : other + 4] + text[at:]
    return text


class Ground:
    """A folder with stand-ins, in which commands are run by bash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "ws"
        self._log = folder / "log"
        (folder / "bin").mkdir()
        stand_in = folder / "bin" / "stand-in"
        stand_in.write_text(_STAND_IN)
        stand_in.chmod(0o755)
        for name in NAMES:
            (folder / "bin" / name).symlink_to("stand-in")
        (self.workspace / "sub" / "sub").mkdir(parents=True)
        (self.workspace / "link").symlink_to("sub/sub")

    def actions(self, command: str) -> tuple[Action, ...]:
        """What was foreseen."""
        return shell_actions("bash", command, cwd=self.workspace)

    def run(self, command: str) -> tuple[list[list[str]], set[Path]]:
        """What ran, each with its arguments, and the files that were made, which are removed."""
        self._log.write_bytes(b"")
        reading, writing = os.pipe()
        environment = {
            "PATH": str(self.folder / "bin"),
            "STAND_IN_LOG": str(self._log),
            "X": "dd",
            "HOME": str(self.workspace),
        }
        with subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=self.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(writing,),
        ) as process:
            os.close(writing)
            _wait_for_all(reading)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return self._called(), self._made()

    def _called(self) -> list[list[str]]:
        called: list[list[str]] = []
        words: list[str] = []
        for word in self._log.read_bytes().decode(errors="replace").split("\0")[:-1]:
            if word == "\1":
                called.append(words)
                words = []
            else:
                words.append(word)
        return [words for words in called if words]

    def _made(self) -> set[Path]:
        found: set[Path] = set()
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.parent.name != "bin" and path != self._log:
                found.add(path)
                path.unlink()
        return found


def _wait_for_all(reading: int) -> None:
    """Wait until every process has closed the pipe's other end, or the time is up."""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        selector.select(RUN_SECONDS_MAX)
    os.close(reading)


def unforeseen(ground: Ground, command: str) -> str:
    """What bash did that no action covers, for a command without opaque parts; empty when all was foreseen."""
    actions = ground.actions(command)
    called, made = ground.run(command)
    texts = [action.text.removeprefix("tool:bash:") for action in actions if not action.whole]
    for words in called:
        if not _covers(texts, words):
            return f"{command!r} ran {words}, foreseen was {texts}"
    for path in made:
        name = (
            f"/workspace/{path.relative_to(ground.workspace)}" if path.is_relative_to(ground.workspace) else str(path)
        )
        if f"> {quote(name)}" not in texts:
            return f"{command!r} wrote {name}, foreseen was {texts}"
    return ""


def _covers(texts: Sequence[str], words: list[str]) -> bool:
    """Whether an action says these words, or this program with arguments that only the shell knows."""
    exact = " ".join(quote(word) for word in words)
    return any(
        text == exact or (text.split(" ")[0] == words[0] and any(char in text for char in "$`*?[{~<>"))
        for text in texts
    )
