"""Follows one Telegram message through the code, up to the model request and up to the posted reply.

    python -m tests.walk            print the counts
    python -m tests.walk --steps    also print every function, in the order of the first calls

The message is the second direct message of a person who is not the owner, so setup for a first message is not
counted. A switch is a first call in a different package or file than the first call before it.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import shoal
from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.sandbox.host import HostSandbox
from shoal.store.store import Store
from shoal.testing.database import empty_database
from shoal.testing.model import FakeModel, Reply, Seen
from shoal.testing.platforms.telegram import TOKEN, FakeTelegram
from shoal.testing.scenario import FakeModels
from shoal.threads.orchestrator import Orchestrator

SOURCE = Path(shoal.__file__).parent
OWNER, PERSON = 7, 9
AGENT = ("ChannelBindings.agent_for", "ChannelBindings.chosen")
ASKER = ("Admissions.of", "Links.audience", "People.asker")
SECONDS_MAX = 60.0


class Walk:
    """Records the calls of Shoal's functions. Groups them by task and keeps the order of the calls."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object] | None, list[CodeType]] = {}

    def __enter__(self) -> "Walk":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def calls(self) -> list[CodeType]:
        return [code for calls in self._tasks.values() for code in calls]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not is_ours(code.co_filename) or code.co_name.startswith("<"):
            return
        # RESUME has the argument 0 when a function starts, not when it resumes
        if code.co_code[frame.f_lasti + 1] == 0:
            self._tasks.setdefault(current_task(), []).append(code)


def current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # called outside the event loop
        return None


@cache
def is_ours(file: str) -> bool:
    path = Path(file)
    return path.is_relative_to(SOURCE) and not path.is_relative_to(SOURCE / "testing")


def place(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(SOURCE).as_posix()


def package(code: CodeType) -> str:
    return place(code).partition("/")[0]


def report(name: str, calls: Sequence[CodeType]) -> list[str]:
    steps = list(dict.fromkeys(calls))
    pairs = list(pairwise(steps))
    counts = {
        "functions": len(steps),
        "files": len({place(code) for code in steps}),
        "file switches": sum(place(one) != place(other) for one, other in pairs),
        "package switches": sum(package(one) != package(other) for one, other in pairs),
    }
    asked = Counter(code.co_qualname for code in calls)
    lines = [f"{name}: {', '.join(f'{number} {what}' for what, number in counts.items())}"]
    lines += [
        f"    {title}: {', '.join(f'{one} {asked[one]}' for one in names)}"
        for title, names in (("who answers", AGENT), ("who asks", ASKER))
    ]
    return lines


async def follow(home: Path) -> tuple[list[CodeType], list[CodeType]]:
    """Send the message and wait for the reply. Return the calls up to the model request, and all calls."""
    telegram, walk = FakeTelegram(), Walk()
    until_model = list[CodeType]()
    for person in (OWNER, PERSON):
        telegram.add_chat(person)

    def answer(_: Seen) -> Reply:
        until_model[:] = walk.calls
        return Reply("Here it is.")

    await telegram.start()
    account = {
        "token": TOKEN, "api_base": telegram.server.address, "owner": str(OWNER), "allow": [str(PERSON)],
    }  # fmt: skip
    settings = {"platforms": {"telegram": [account]}, "mailbox": {"pause_seconds": 0}, "sandbox": {"kind": "host"}}
    parts = Overrides(models=FakeModels(FakeModel(script=answer)), sandbox=HostSandbox())
    empty_database(home / "shoal.db")
    try:
        async with asyncio.timeout(SECONDS_MAX), open_app(load_config(home, {}, settings), parts) as app:
            await telegram.says(PERSON, "first")
            await telegram.sees(PERSON, "Here it is.")
            while await app[Store].outbox.depth() or app[Orchestrator].running:
                pass  # the first message is still being processed
            with walk:
                await telegram.says(PERSON, "second")
                await telegram.until(lambda: len(telegram.said(PERSON)) == 2 or None)
    finally:
        await telegram.stop()
    return until_model, walk.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        until_model, until_post = asyncio.run(follow(Path(folder)))
    if steps:
        for number, code in enumerate(dict.fromkeys(until_model), 1):
            print(f"{number:4} {place(code)} {code.co_qualname}")
    print(*report("until the model is asked", until_model), sep="\n")
    print(*report("until the answer is posted", until_post), sep="\n")


if __name__ == "__main__":
    main()
