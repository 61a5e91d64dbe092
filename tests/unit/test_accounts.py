"""Accounts: a platform's adapter costs nothing where it is not configured, and what is missing is told."""

import subprocess
import sys

import pytest

from shoal.kernel.errors import ConfigError
from shoal.platforms.record import BUILT_IN
from shoal.platforms.slack.wire import check_package

LOADED = "import sys, shoal.accounts; print('\\n'.join(sys.modules))"


def test_adapters_are_imported_when_they_are_configured() -> None:
    command = [sys.executable, "-c", LOADED]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert "shoal.platforms.local" in loaded
    assert not loaded & {f"shoal.platforms.{platform}" for platform in BUILT_IN}
    assert not loaded & {"websockets", "aiohttp", "nio", "discord", "jwt", "slack_sdk"}


def test_a_missing_package_is_told_with_its_extra() -> None:
    check_package()
    with pytest.raises(ConfigError, match=r"needs the extra `slack`. Run: "):
        check_package("no_such_package_of_this_name")
