"""Compares the files that a person allowed a command to run with what is there, at the last moment: in the shell that
runs the command, before its first word.

A sandbox that can show a command other bytes in a file's place puts what was allowed over the file, and a second time
below `ALLOWED`. The two are one file as long as nobody has put another one in its place. Where the command sees the
inodes of the host, the folders on the way to the file have to be as they were when it was read, so that nobody has put
anything into its place and taken it out again either.

Of a command that somebody watches, the first line of the output says how the check ended. The watch does not see it,
and is told that the command has started once the check has passed.
"""

import secrets
import shlex

import msgspec

from shoal.domain.errors import ContentChanged
from shoal.domain.ports import Command, CommandResult, RunFile
from shoal.domain.processes import Watch

ALLOWED = "/run/allowed"
"""Where the N-th file of a command lies a second time."""
EXIT_CODE = 97
_SAID = "What this command runs has changed since it was allowed, so it did not run."


class Guard:
    """The check of one command."""

    def __init__(self, command: Command, *, sees_inodes: bool) -> None:
        mark = secrets.token_hex(8)
        self._said, self._passed = f"{_SAID} [{mark}]", f"[{mark}]"
        self._command = command
        self._watch = _CheckedWatch(command.watch, self._passed, self._said) if command.watch is not None else None
        self._sees_inodes = sees_inodes

    @property
    def command(self) -> Command:
        """The command with the check before it; as it is where it runs no file that was asked for."""
        if not self._command.runs:
            return self._command
        checks = " && ".join(
            _check(number, file, sees_inodes=self._sees_inodes) for number, file in enumerate(self._command.runs)
        )
        refuse = f"{{ {_print(self._said)}; exit {EXIT_CODE}; }}"
        passed = f"{_print(self._passed)}; " if self._watch is not None else ""
        text = f"{{ {checks}; }} 2>/dev/null || {refuse}; {passed}{self._command.text}"
        return msgspec.structs.replace(self._command, text=text, watch=self._watch)

    def checked(self, result: CommandResult) -> CommandResult:
        """The result. Raises ContentChanged when the check failed."""
        was_refused = self._said.encode() in result.stderr if self._watch is None else self._watch.was_refused
        if self._command.runs and result.exit_code == EXIT_CODE and was_refused:
            raise ContentChanged(_SAID)
        return result


class _CheckedWatch:
    """Implements `domain.processes.Watch` for a command with a check before it: `inner` sees what comes after that."""

    def __init__(self, inner: Watch, passed: str, refused: str) -> None:
        self.was_refused = False
        self._inner = inner
        self._passed, self._refused = f"{passed}\n".encode(), f"{refused}\n".encode()
        self._pid = 0
        self._first = b""
        self._has_begun = False

    def started(self, pid: int) -> None:
        """The check runs."""
        self._pid = pid

    def output(self, data: bytes) -> None:
        """Look at the first line, and hand on what follows; all of it where the line is not the check's."""
        if self._has_begun:
            self._inner.output(data)
            return
        self._first += data
        self.was_refused = self._first.startswith(self._refused)
        is_cut = any(line.startswith(self._first) and line != self._first for line in (self._passed, self._refused))
        if self.was_refused or is_cut:
            return
        self._has_begun = True
        self._inner.started(self._pid)
        if rest := self._first.removeprefix(self._passed):
            self._inner.output(rest)


def _print(line: str) -> str:
    return f"printf '%s\\n' {shlex.quote(line)} >&2"


def _check(number: int, file: RunFile, *, sees_inodes: bool) -> str:
    path, bound = shlex.quote(file.path), f"{ALLOWED}/{number}"
    if not file.digest:
        return f"[ ! -e {path} ] && [ ! -L {path} ]"
    unmoved = ""
    if sees_inodes and file.folders:
        folders = " ".join(shlex.quote(path) for path, _, _ in file.folders)
        stood = "\n".join(f"{inode} {at // 10**9}.{at % 10**9:09d}" for _, inode, at in file.folders)
        unmoved = f" && [ \"$(stat -c '%i %.9Y' {folders})\" = {shlex.quote(stood)} ]"
    read = f'"$({{ sha256sum || shasum -a 256; }} <{path})"'
    is_same = f"[[ {read} == {file.digest}* ]]"
    return f"[ ! -L {path} ] && if [ -e {bound} ]; then [ {path} -ef {bound} ]; else {is_same}; fi{unmoved}"
