"""The tree of errors. A message says what happened, to which object, and what to do next.

ShoalError
├── InvalidId, InvalidInput          the input is invalid; nothing was changed
│   ├── EndedTwice                   an InvalidInput: the process crashed twice while working on it
│   └── KeyRefused, Unreachable      an InvalidInput: the service that was entered refuses the key, or does not answer
├── ConfigError                      the settings are wrong; contains every problem found
├── HomeLocked                       another process uses this home directory
├── StoreError                       the database refused the operation
│   ├── StoreUnavailable             temporary: work that can wait waits
│   │   └── StoreFull                the disk is full
│   ├── StoreReadOnly, StoreCorrupt, StoreNewer, StoreUnreleased
│   ├── StaleEpoch                   another worker took the thread over; drop the turn
│   └── QueueChanged                 the queue of a turn has changed; read it again
├── ToolError                        a tool's failure, returned to the model as its result
├── FetchError                       an address may not be opened, or does not answer
├── SandboxError                     the sandbox could not start the command
│   ├── FolderFull                   it may not write, or was ended: a folder or the disk is full
│   └── ContentChanged               a file it runs has changed since a person allowed it; it did not run
├── ProviderError                    a model provider could not be asked (a failed answer is a ModelFailed)
│   ├── ProviderRefused              it refuses the key, or no key is set
│   └── ProviderDown                 it is unreachable or does not work
├── PlatformError                    a chat platform refused or failed
├── ExtensionFailed                  code of an installed package failed or took too long
├── Forbidden                        the caller lacks permission
└── NotFound, Conflict, Gone         an id that is unknown, already decided, or expired
    ├── FilesDiffer                  a Conflict: files to restore have changed since
    └── UnderWay                     a Conflict: another process is already doing it
"""

import os
from collections.abc import Sequence
from pathlib import Path


class ShoalError(Exception):
    """Base class of all errors that Shoal raises on purpose."""


class InvalidId(ShoalError):
    """Raised for an id in an invalid form."""


class InvalidInput(ShoalError):
    """Raised for an invalid request from outside. The message names the field and the allowed values."""


class ExtensionFailed(ShoalError):
    """Raised if a command or hook of an installed package failed unexpectedly, or took too long."""


class EndedTwice(InvalidInput):
    """Raised instead of starting work that crashed the process twice."""


class KeyRefused(InvalidInput):
    """Raised if the service that was entered refuses the key."""


class Unreachable(InvalidInput):
    """Raised if the service that was entered does not respond. A later attempt may succeed."""


class ConfigError(ShoalError):
    """Raised for an invalid configuration. `problems` has one full sentence for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class HomeLocked(ShoalError):
    """Raised if another process is using this home directory."""


class StoreError(ShoalError):
    """Raised if the database refused or lost the transaction. None of it is stored."""


class StoreReadOnly(StoreError):
    """Raised if the database or its directory is read-only."""


class StoreCorrupt(StoreError):
    """Raised if the database file is damaged."""


class StoreNewer(StoreError):
    """Raised if a newer version of Shoal wrote the database."""


class StoreUnreleased(StoreError):
    """Raised if a version before the first release wrote the database."""


class StoreUnavailable(StoreError):
    """Raised if the database is unreachable, locked by another program, or out of disk space. A retry may succeed."""


class StoreFull(StoreUnavailable):
    """Raised if the disk is full or failing."""


class StaleEpoch(StoreError):
    """Raised if another worker has taken over this thread. The rest of this worker's turn is dropped."""


class QueueChanged(StoreError):
    """Raised if a message was changed while its turn was being opened. Read the waiting messages again."""


class ToolError(ShoalError):
    """Raised if a tool fails. The text is the call's result for the model.

    `tainted_by` names the untrusted source of some of the text, or is empty. `quotes` are files whose name or content
    the text shows. If these are tainted, the text is too.
    """

    def __init__(self, text: str, tainted_by: str = "", quotes: Sequence[Path] = ()) -> None:
        super().__init__(text)
        self.tainted_by = tainted_by
        self.quotes = tuple(quotes)


class FetchError(ShoalError):
    """Raised if a URL is not allowed or its server does not respond properly."""


class SandboxError(ShoalError):
    """Raised if the sandbox could not start the command. A command that fails by itself does not raise this."""


class FolderFull(SandboxError):
    """Raised if a folder that commands or file tools write to is too large, or its disk is nearly full."""


class ContentChanged(SandboxError):
    """Raised if a file that a command runs has changed since a person allowed it. The command did not run."""


class ProviderError(ShoalError):
    """Raised if a model provider fails."""


class ProviderRefused(ProviderError):
    """Raised if the provider refused the key, or the key is unavailable."""


class ProviderDown(ProviderError):
    """Raised if the provider is unreachable or sent an invalid response."""


ASKED_SECONDS_MAX = 3600.0
"""Maximum wait that a platform can request, in seconds. Some platforms request a day, or a time in the year 9999."""


class PlatformError(ShoalError):
    """Raised if a chat platform refused a request or failed.

    `retry_after_seconds` is the wait that the platform requests, at most ASKED_SECONDS_MAX. `permanent` means that a
    retry cannot help. `outcome_unknown` means that the message may have been posted. `everywhere` means that the wait
    applies to the whole account. `barred` means that the chat accepts no posts: with `permanent` it no longer exists,
    otherwise it may accept posts later.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        permanent: bool = False,
        outcome_unknown: bool = False,
        everywhere: bool = False,
        barred: bool = False,
    ) -> None:
        super().__init__(message)
        capped = None if retry_after_seconds is None else min(retry_after_seconds, ASKED_SECONDS_MAX)
        self.retry_after_seconds = capped
        self.permanent = permanent
        self.outcome_unknown = outcome_unknown
        self.everywhere = everywhere
        self.barred = barred


class Forbidden(ShoalError):
    """Raised if the asker is not allowed to do this. The message says who is."""


class NotFound(ShoalError):
    """Raised if the id does not exist."""


class Conflict(ShoalError):
    """Raised if the object was already decided or changed. The message says how."""


class FilesDiffer(Conflict):
    """Raised if files to restore were changed after the turn. A person must choose what happens to them."""


class UnderWay(Conflict):
    """Raised if another process is already doing the same work."""


class Gone(ShoalError):
    """Raised if the object has expired."""


def system_words(error: OSError) -> str:
    """Return the operating system's message for a failed call, with the path."""
    why = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {why}" if isinstance(error.filename, str | bytes) else why
