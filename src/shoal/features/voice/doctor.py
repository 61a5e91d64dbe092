"""Check speech models in `shoal doctor`."""

import os
import shutil
from collections.abc import AsyncGenerator
from importlib.util import find_spec

from shoal.features.voice.settings import SpeechSettings
from shoal.features.voice.speech import build_speech
from shoal.installation import how_to_add
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ConfigError
from shoal.kernel.settings import Config
from shoal.models.speech import ESPEAK, MOONSHINE
from shoal.surfaces.cli.context import CommandContext
from shoal.surfaces.cli.findings import DoctorFinding, fail, ok


async def look_at_voice(context: CommandContext, config: Config) -> AsyncGenerator[DoctorFinding]:
    """Check that the models in [speech] are valid and that local models are installed. Calls no service."""
    settings, clock = config.section(SpeechSettings), SystemClock()
    for key in ("recognition", "speaking"):
        check = f"speech.{key}"
        try:
            model = build_speech(key, settings, config.providers, clock, os.environ)
        except ConfigError as error:
            yield fail(check, error.problems[0], f"Correct {check} in shoal.toml.")
            continue
        if model is None:
            continue
        await model.close()
        if model.name == ESPEAK and shutil.which(ESPEAK) is None:
            yield fail(check, f"{ESPEAK} is not installed.", f"Install the package {ESPEAK}.")
        elif model.name == MOONSHINE and not (find_spec("moonshine_voice") and find_spec("av")):
            yield fail(check, f"The extra for {MOONSHINE} is not installed.", how_to_add("voice"))
        else:
            yield ok(check, f"{model.name}.")
