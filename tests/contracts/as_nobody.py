"""Reads pickled commands from standard input, runs them in bubblewrap as the user nobody, and writes the pickled
results.

It must be started as root. It is a separate process because a process that switched to nobody cannot switch back to
root, and because a fork of the test process would lack the threads that the sandbox needs.
"""

import asyncio
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.kernel.errors import SandboxError
from shoal.kernel.ports import Command, CommandResult, Mount
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.limits import CommandLimits
from shoal.testing.contracts import isolation

NOBODY = 65_534
SANDBOX = BubblewrapSandbox(
    CommandLimits(
        memory_bytes_max=isolation.MEMORY_BYTES_MAX,
        processes_max=isolation.PROCESSES_MAX,
        file_bytes_max=isolation.FILE_BYTES_MAX,
        temporary_bytes_max=isolation.TEMPORARY_BYTES_MAX,
        cpu_seconds_max=isolation.CPU_SECONDS_MAX,
        open_files_max=isolation.OPEN_FILES_MAX,
    )
)


async def _outcome(sandbox: BubblewrapSandbox, command: Command) -> CommandResult | str:
    try:
        return await sandbox.run(command)
    except SandboxError as error:
        return str(error)


def main() -> None:
    with TemporaryDirectory() as folder:  # imports all modules while root can still read the interpreter's files
        asyncio.run(_outcome(BubblewrapSandbox(), Command("true", Path(folder), (Mount(Path(folder), "/workspace"),))))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    with suppress(EOFError):
        while True:
            pickle.dump(asyncio.run(_outcome(SANDBOX, pickle.load(sys.stdin.buffer))), sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
