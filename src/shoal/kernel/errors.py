"""Errors that Shoal raises on purpose. A message says what happened, to which object, and what to do next.

ShoalError
├── InvalidId
├── InvalidInput
│   ├── EndedTwice
│   ├── KeyRefused
│   └── Unreachable
├── ConfigError
├── HomeLocked
├── StoreError
│   ├── StoreUnavailable
│   │   └── StoreFull
│   ├── StoreReadOnly
│   ├── StoreCorrupt
│   ├── StoreNewer
│   ├── StoreUnreleased
│   ├── StaleEpoch
│   └── QueueChanged
├── ToolError
├── FetchError
├── SandboxError
│   ├── FolderFull
│   └── ContentChanged
├── ProviderError
│   ├── ProviderRefused
│   └── ProviderDown
├── PlatformError
├── ExtensionFailed
├── Forbidden
├── NotFound
├── Conflict
│   ├── FilesDiffer
│   └── UnderWay
└── Gone
"""

import os
from collections.abc import Sequence
from pathlib import Path


class ShoalError(Exception):
    """Base class of the errors that Shoal raises on purpose."""


class InvalidId(ShoalError):
    """Raised if an id does not have the required form."""


class InvalidInput(ShoalError):
    """Raised if a request from outside is invalid. Nothing was changed. The message names the field and the
    allowed values.
    """


class ExtensionFailed(ShoalError):
    """Raised if a command or hook of an installed package fails unexpectedly or takes too long."""


class EndedTwice(InvalidInput):
    """Raised instead of starting work that has crashed the process twice."""


class KeyRefused(InvalidInput):
    """Raised if a service refuses the key that a person entered."""


class Unreachable(InvalidInput):
    """Raised if a service that a person entered does not respond. A later attempt may succeed."""


class ConfigError(ShoalError):
    """Raised if the configuration is invalid. `problems` has one complete sentence for each problem."""

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
    """Raised if another worker has taken over this thread. This worker must drop the rest of the turn."""


class QueueChanged(StoreError):
    """Raised if a waiting message changed while its turn was being opened. Read the waiting messages again."""


class ToolError(ShoalError):
    """Raised if a tool call fails. The text becomes the result that the model sees.

    `tainted_by`: untrusted source of some of the text, or an empty string.
    `quotes`: files whose name or content appears in the text. If one of them is tainted, the text is tainted.
    """

    def __init__(self, text: str, tainted_by: str = "", quotes: Sequence[Path] = ()) -> None:
        super().__init__(text)
        self.tainted_by = tainted_by
        self.quotes = tuple(quotes)


class FetchError(ShoalError):
    """Raised if a URL is not allowed, or if its server does not respond properly."""


class SandboxError(ShoalError):
    """Raised if the sandbox could not start the command. A command that runs and fails does not raise this."""


class FolderFull(SandboxError):
    """Raised if a folder that commands or file tools write to is too large, or if its disk is nearly full."""


class ContentChanged(SandboxError):
    """Raised if a file that a command runs has changed since a person allowed it. The command did not run."""


class ProviderError(ShoalError):
    """Raised if a request to a model provider fails. A failed model call is reported as ModelFailed instead."""


class ProviderRefused(ProviderError):
    """Raised if the provider refuses the key, or if no key is available."""


class ProviderDown(ProviderError):
    """Raised if the provider is unreachable or sends an invalid response."""


ASKED_SECONDS_MAX = 3600.0
"""Maximum delay that a platform can request, in seconds. Some platforms request a day, or a time in the year 9999."""


class PlatformError(ShoalError):
    """Raised if a chat platform refuses a request or fails.

    `retry_after_seconds`: wait that the platform requests, at most ASKED_SECONDS_MAX.
    `permanent`: a retry cannot succeed.
    `outcome_unknown`: the message may have been posted.
    `everywhere`: the wait applies to all chats of the account.
    `barred`: the chat accepts no posts. If `permanent` is also set, the chat no longer exists.
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
    """Raised if the person who asked lacks permission. The message says who has it."""


class NotFound(ShoalError):
    """Raised if no object has this id."""


class Conflict(ShoalError):
    """Raised if the object was already decided or has changed. The message says how."""


class FilesDiffer(Conflict):
    """Raised if files that an undo would restore were changed after the turn. A person must choose whether to
    overwrite them.
    """


class UnderWay(Conflict):
    """Raised if another process is already doing the same work."""


class Gone(ShoalError):
    """Raised if the object has expired."""


def system_words(error: OSError) -> str:
    why = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {why}" if isinstance(error.filename, str | bytes) else why
