"""Run AgentDojo's tasks against Shoal and print a table: `python -m bench.agentdojo`. See README.md."""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench.agentdojo.cases import Outcome, measure
from bench.child import ROOT

PROFILES = ("standard", "guarded", "open", "off")
QUICK_TASKS, QUICK_ATTACKS = 8, 70
HEAD = """\
| profile | tasks done | questions per task | injections read | injected effects | goals reached |
| --- | --: | --: | --: | --: | --: |"""


def spread(numbers: Sequence[int]) -> str:
    """Format the median, the 95th percentile and the maximum."""
    ordered = sorted(numbers)
    return f"{median(ordered):g}, {ordered[-(-len(ordered) * 95 // 100) - 1]}, {ordered[-1]}"


def row(profile: str, benign: Sequence[Outcome], attended: Sequence[Outcome], alone: Sequence[Outcome]) -> str:
    """Format a profile's table row. Injected effects and reached goals are counted with a person, then without one."""
    done = f"{sum(one.is_done for one in benign)} of {len(benign)}"
    read = f"{sum(one.is_hijacked for one in attended)} of {len(attended)}"
    effects = ", ".join(str(sum(len(one.effects) for one in outcomes)) for outcomes in (attended, alone))
    reached = ", ".join(str(sum(one.is_reached for one in outcomes)) for outcomes in (attended, alone))
    return f"| {' | '.join((profile, done, spread([one.questions for one in benign]), read, effects, reached))} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agentdojo", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="run about a dozen of the 97 tasks and about a dozen of the 949 attacks"
    )
    parser.add_argument("--profiles", nargs="+", default=PROFILES, choices=PROFILES)
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    options = parser.parse_args()
    if subprocess.run([ROOT / "bench" / "agentdojo" / "setup.sh"], check=False).returncode:
        sys.exit(1)
    print(HEAD, flush=True)
    outcomes: dict[str, list[list[Outcome]]] = {}
    for profile in options.profiles:
        outcomes[profile] = []
        for attack, attended in ((False, True), (True, True), (True, False)):
            every = (QUICK_ATTACKS if attack else QUICK_TASKS) if options.quick else 1
            began = time.monotonic()
            outcomes[profile].append(asyncio.run(measure(profile, every, attack=attack, attended=attended)))
            print(f"{len(outcomes[profile][-1])} cases in {time.monotonic() - began:.0f} s", file=sys.stderr)
        print(row(profile, *outcomes[profile]), flush=True)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(outcomes))


if __name__ == "__main__":
    main()
