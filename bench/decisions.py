"""Measure how long a permission decision takes for a shell command. Uses a thousand typical commands of agents, without
a cache.
"""

import subprocess
import tempfile
import time
from pathlib import Path

from bench.child import ROOT
from bench.rows import Row
from shoal.agents.toolbox import built_in_traits
from shoal.permissions.actions import forget_commands, shell_actions
from shoal.permissions.profiles import Profiles, decide_all

CORPUS = ROOT / "tests" / "unit" / "permissions" / "commands.txt"
DECISION_MS_MAX = 1.0
SHARE = 0.95


def measure() -> list[Row]:
    """Measure the 95th percentile of the time to decide on a command, including file system checks and bash."""
    commands = [line[2:].replace("␤", "\n") for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    profile = Profiles(built_in_traits()).get("guarded")
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for command in commands[:50] + commands:
            forget_commands()
            began = time.perf_counter()
            decide_all(profile, shell_actions("bash", command, cwd=Path(folder)))
            taken.append((time.perf_counter() - began) * 1000)
    found = sorted(taken[50:])
    return [
        Row("deciding on a command, 95th percentile", "ms", found[int(len(found) * SHARE)], bound=DECISION_MS_MAX,
            note=f"{len(found):,} commands, median {found[len(found) // 2]:.2f} ms"),
    ]  # fmt: skip
