"""The cost of checkpoints of a workspace with a thousand files: the first checkpoint, a checkpoint without changes, and
a checkpoint after one file has changed.
"""

import tempfile
import time
from pathlib import Path

from bench.rows import Row, middle
from shoal.kernel.checkpoints import CheckpointsSettings
from shoal.store.files import LocalFiles
from shoal.tools.taint_spans import Marks
from shoal.tools.trees import SETTLED_NANOSECONDS, Scan, Trees

FILES = 1_000
ROUNDS = 15
UNCHANGED_MS_MAX = 10.0


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        root, trees, settings = (
            Path(folder) / "workspace",
            Trees(LocalFiles(Path(folder) / "kept")),
            CheckpointsSettings(),
        )
        for number in range(FILES):
            file = root / f"d{number % 40}" / f"f{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"file {number}\n" * 40)

        def scan(before: Scan | None) -> tuple[Scan, float]:
            began = time.perf_counter()
            found = trees.scan(root, settings, Marks(), before.seen if before is not None else {})
            return found, (time.perf_counter() - began) * 1000

        last, first_ms = scan(None)
        time.sleep(SETTLED_NANOSECONDS / 1e9 + 0.1)  # a file that has just changed would be read again
        last, _ = scan(last)
        unchanged, one = list[float](), list[float]()
        for number in range(ROUNDS):
            last, taken = scan(last)
            unchanged.append(taken)
            (root / "d0" / "f0.txt").write_text(str(number))
            last, taken = scan(last)
            one.append(taken)
    return [
        Row(f"checkpoint of {FILES:,} unchanged files", "ms", middle(unchanged), bound=UNCHANGED_MS_MAX,
            note=f"{first_ms:.0f} ms for the first one, {middle(one):.1f} ms with one changed file"),
    ]  # fmt: skip
