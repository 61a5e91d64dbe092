"""All threads of a long-running process share one heap of the C library, and the process returns freed memory."""

import os
import subprocess
import sys

import pytest

ALLOCATE = """
import sys, threading
from shoal.maintenance import share_one_heap
if sys.argv[1] == "one":
    share_one_heap()
begin, all_hold = threading.Barrier(8), threading.Barrier(9)

def allocate():
    begin.wait()
    held = [bytes(2_000) for _ in range(5_000)]
    all_hold.wait()
    all_hold.wait()

for _ in range(8):
    threading.Thread(target=allocate).start()
all_hold.wait()
# A further heap is 64 MiB set aside at once, of which the end is not in use yet and may not be touched.
ends = [int(line.split("-")[1].split()[0], 16) for line in open("/proc/self/maps") if " ---p " in line]
print("several" if any(end % 2**26 == 0 for end in ends) else "one")
all_hold.wait()
"""

FREE = """
import asyncio
from shoal.maintenance import return_freed_memory
from shoal.testing.clock import ManualClock

def resident():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Rss")) / 1024

async def main():
    before = resident()
    held = [bytes(2_000) for _ in range(20_000)]
    held = held[::20]  # 2 MB, strewn over the 40
    full = resident()
    clock = ManualClock()
    trimming = asyncio.create_task(return_freed_memory(clock))
    await clock.advance(61)
    print(full - before > 30, resident() - before < 15)
    trimming.cancel()

asyncio.run(main())
"""

GLIBC = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="the C library is not glibc")


@GLIBC
@pytest.mark.parametrize("heaps", ["one", "several"])
def test_the_threads_of_a_long_running_process_share_one_heap(heaps: str) -> None:
    command = [sys.executable, "-c", ALLOCATE, heaps]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == heaps


@GLIBC
def test_memory_freed_after_a_peak_is_returned_to_the_system() -> None:
    result = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["True", "True"]
