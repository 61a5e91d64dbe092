"""An S3-compatible server in a separate process, for tests of object storage."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def server() -> Generator[str]:
    setup = subprocess.run([ROOT / "scripts" / "s3-server.sh"], check=False, capture_output=True, text=True)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "s3-server" / "python")}
    argv = [sys.executable, "-m", "moto.server", "-p", "0"]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said: list[str] = []
        address = ""
        for line in server.stderr:
            said.append(line.strip())
            address = next((word for word in line.split() if word.startswith("http://")), "")
            if "Running on" in line and address:
                break
        if not address:
            pytest.skip(f"the S3-compatible server did not start: {' / '.join(said[-3:])}")
        # discards the log, because the server blocks when the pipe is full
        Thread(target=deque, args=(server.stderr, 0), daemon=True).start()
        yield address
        server.kill()
