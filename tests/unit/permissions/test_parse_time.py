"""The time for taking a command apart is CPU time: a machine that is busy elsewhere makes no command unreadable."""

import signal
import subprocess
import sys
import time

READ = """
from shoal.permissions.shell import Unreadable, take_apart
take_apart("true")
print("ready", flush=True)
try:
    take_apart("x=(a " * 2000)
except Unreadable as error:
    print(error)
"""


def test_a_process_that_stood_still_goes_on_reading() -> None:
    with subprocess.Popen([sys.executable, "-c", READ], stdout=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == "ready\n"
        reading.send_signal(signal.SIGSTOP)
        time.sleep(0.7)  # more than may be spent on the text
        reading.send_signal(signal.SIGCONT)
        assert reading.stdout.read() == "it is not a complete shell command\n"
