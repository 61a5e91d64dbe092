"""Writes the table of docs/providers.md from the results of the contract suite: which conversations each service
accepts.

    python -m tests.provider_table         run the suite on every service (some minutes), and write both files
    python -m tests.provider_table page    write the page from the stored results

`tests/tidy/test_provider_table.py` compares the page with the results, and the results with the existing services.
"""

import asyncio
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import msgspec

from shoal.models.model_table import known_quirks
from shoal.models.quirks import Change
from shoal.testing.model.services import SERVICES
from tests.contracts.test_services import BEHAVIOURS, broken

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests/contracts/services.toml"
PAGE = ROOT / "docs/providers.md"
BEGIN, END = "<!-- from tests/contracts/services.toml -->\n", "<!-- end -->\n"
HEAD = ("service", "images", "tools", "parallel calls", "earlier reasoning")


class Result(msgspec.Struct):
    """Results for one service.

    - holds: the behaviors that were tested.
    - quirks: the quirks that Shoal learned from rejected requests.
    """

    holds: list[str]
    quirks: dict[str, Change]


Results = dict[str, Result]


async def record() -> Results:
    results: Results = {}
    for name, service in SERVICES.items():
        learned: dict[str, Change] = {}
        with tempfile.TemporaryDirectory() as folder:
            failed = await broken(service, Path(folder), learned)
        if failed:
            sys.exit(f"{name}: {failed}")
        print(name, learned, flush=True)
        results[name] = Result([behaves.__name__ for behaves in BEHAVIOURS], dict(sorted(learned.items())))
    return results


def read() -> Results:
    return msgspec.convert(tomllib.loads(RESULTS.read_text(encoding="utf-8")), Results)


def written(results: Results) -> str:
    lines = ["# Written by `python -m tests.provider_table`, from a run of the contract suite over every service."]
    for name, result in results.items():
        quirks = ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in result.quirks.items())
        lines += ["", f'["{name}"]', f"holds = {msgspec.json.encode(result.holds).decode()}", f"quirks = {{{quirks}}}"]
    return "\n".join(lines) + "\n"


def row(name: str, result: Result) -> tuple[str, ...]:
    kind = SERVICES[name].kind
    quirks = known_quirks("", SERVICES[name].model).changed(result.quirks)
    is_chat = kind == "openai"
    images = {"none": "names only", "user": "in user messages", "all": "in user messages" if is_chat else "everywhere"}
    back = {
        "openai": "left out",
        "openai-responses": "sent, encrypted",
        "anthropic": "sent, signed",
        "gemini": "sent, signed",
    }[kind]
    if quirks.call_signatures:
        back = "signatures of calls"
    if quirks.reasoning_needed:
        back = "required"
    if not quirks.thinking:
        back = "left out"
    return (
        name,
        images[quirks.images],
        "yes" if quirks.tools else "as text",
        "yes" if quirks.parallel_calls else "one per message",
        back,
    )


def table(results: Results) -> str:
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines += [f"| {' | '.join(row(name, result))} |" for name, result in results.items()]
    return "\n".join(lines) + "\n"


def page(text: str, results: Results) -> str:
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(results)}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    if "page" not in sys.argv[1:]:
        RESULTS.write_text(written(asyncio.run(record())), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
