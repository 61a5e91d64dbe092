"""The program imports a platform adapter only if the platform is configured."""

import subprocess
import sys

from shoal.platforms.record import BUILT_IN

LOADED = "import sys, shoal.accounts; print('\\n'.join(sys.modules))"


def test_adapters_are_imported_when_they_are_configured() -> None:
    command = [sys.executable, "-c", LOADED]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert "shoal.platforms.local" in loaded
    assert not loaded & {f"shoal.platforms.{platform}" for platform in BUILT_IN}
    assert not loaded & {"websockets", "aiohttp", "nio", "discord", "jwt", "slack_sdk"}
