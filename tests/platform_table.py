"""Writes the table of tests/PLATFORMS.md: which cases of the contract suite hold on which platform.

    python -m tests.platform_table        run the suite on every platform (two minutes), and write both files
    python -m tests.platform_table new    run only new cases (seconds), and write both files
    python -m tests.platform_table page   write the page from the stored results

`tests/tidy/test_platform_table.py` compares the page with the results, and the results with the existing cases.
"""

import inspect
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from shoal.testing.contracts.chat import ChatContract

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests/contracts/platforms.toml"
PAGE = ROOT / "tests/PLATFORMS.md"
BEGIN, END = "<!-- from tests/contracts/platforms.toml -->\n", "<!-- end -->\n"
EXAMPLE = ROOT / "packages/shoal-irc"
PLATFORMS: Mapping[str, tuple[str, ...]] = {
    "Telegram": ("TestTelegram", "TestTelegramByWebhook"),
    "Discord": ("TestDiscord", "TestDiscordThread", "TestDiscordChannel"),
    "Slack": ("TestSlack", "TestSlackThread", "TestSlackByHttp"),
    "Matrix": ("TestMatrix", "TestMatrixThread"),
    "Teams": ("TestTeams", "TestTeamsGroup"),
    "Google Chat": ("TestGoogleChat", "TestGoogleChatPulled"),
    "webhook": ("TestWebhookChat",),
    "IRC": ("TestIrc",),
    "page": ("TestWeb",),
    "terminal": ("TestTerminal",),
}
"""Test suites by platform. IRC is the platform of packages/shoal-irc."""
HOLDS = "holds"

Results = dict[str, dict[str, str]]


def cases() -> list[str]:
    tests = [
        (inspect.getsourcefile(test) != inspect.getsourcefile(ChatContract), inspect.getsourcefile(test), name)
        for name, test in inspect.getmembers(ChatContract, inspect.isfunction)
        if name.startswith("test_")
    ]
    return [name for _, _, name in sorted(tests, key=lambda one: (one[0], str(one[1])))]


def record(kept: Results) -> Results:
    """Run the suite on every platform, except for the cases in `kept`. Exits if a case fails.

    Returns HOLDS for each case that ran, or the reason why it was skipped.
    """
    known = set[str]().union(*kept.values())
    results: Results = {name: {case: kept[name][case] for case in cases() if case in kept[name]} for name in PLATFORMS}
    added = " or ".join(case for case in cases() if case not in known)
    if not added:
        return results
    suites = f"({' or '.join(suite for all_ in PLATFORMS.values() for suite in all_)}) and ({added})"
    files = sorted((ROOT / "tests/contracts").glob("test_chat_*.py"))
    there = ["-c", EXAMPLE / "pyproject.toml", "--rootdir", EXAMPLE, EXAMPLE / "tests/test_contract.py"]
    there += ["--import-mode=prepend", "-o", f"pythonpath={EXAMPLE / 'src'} {EXAMPLE / 'tests'}", "-k", added]
    with tempfile.TemporaryDirectory() as folder:
        for number, arguments in enumerate((["-k", suites, *files], there)):
            report = Path(folder, f"{number}.xml")
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-r",
                "N",
                "-p",
                "no:cacheprovider",
                f"--junitxml={report}",
            ]
            subprocess.run([*command, *map(str, arguments)], check=True, cwd=ROOT)
            for case in ElementTree.parse(report).iter("testcase"):
                suite, name = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
                platform = next((one for one, all_ in PLATFORMS.items() if suite in all_), None)
                skipped = case.find("skipped")
                if platform is not None and skipped is None:
                    results[platform][name] = HOLDS
                elif platform is not None and skipped is not None:
                    results[platform].setdefault(name, skipped.attrib["message"])
    return results


def read() -> Results:
    return tomllib.loads(RESULTS.read_text(encoding="utf-8"))


def written(results: Results) -> str:
    lines = ["# Written by `python -m tests.platform_table`, from a run of the contract suite over every platform."]
    for platform, outcomes in results.items():
        lines += ["", f'["{platform}"]']
        lines += [f'{case} = "{outcomes[case]}"' for case in cases() if case in outcomes]
    return "\n".join(lines) + "\n"


def table(results: Results) -> str:
    reasons = sorted({reason for outcomes in results.values() for reason in outcomes.values()} - {HOLDS})
    sign = {HOLDS: "✓"} | {reason: str(number) for number, reason in enumerate(reasons, 1)}
    lines = [f"| | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for case in cases():
        said = case.removeprefix("test_").replace("_", " ")
        lines.append(f"| {said} | {' | '.join(sign[outcomes[case]] for outcomes in results.values())} |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes]) + "\n"


def page(text: str, results: Results) -> str:
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(results)}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    if "page" not in sys.argv[1:]:
        kept = read() if "new" in sys.argv[1:] else {name: {} for name in PLATFORMS}
        RESULTS.write_text(written(record(kept)), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
