"""The time limit for parsing a command counts CPU time, so a busy machine makes no command unreadable."""

import signal
import subprocess
import sys

READ = """
from shoal.shell.reader import Unreadable, take_apart
take_apart("true")
print("ready", flush=True)
try:
    take_apart("x=(a " * 2000)
except Unreadable as error:
    print(error)
"""


WORK = "import time\nwhile time.process_time() < 0.7: pass"


def test_a_process_that_was_paused_continues_parsing() -> None:
    with subprocess.Popen([sys.executable, "-c", READ], stdout=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == "ready\n"
        reading.send_signal(signal.SIGSTOP)
        subprocess.run([sys.executable, "-c", WORK], check=True)  # runs for longer than the parser's time limit
        reading.send_signal(signal.SIGCONT)
        assert reading.stdout.read() == "it is not a complete shell command\n"
