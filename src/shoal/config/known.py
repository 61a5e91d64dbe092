"""Tells every secret of a configuration to whoever keeps secrets out of texts."""

import re
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from shoal.config.records import Config
from shoal.config.secret import Secret
from shoal.domain.errors import ConfigError
from shoal.domain.home import Home

_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|credential", re.IGNORECASE)
"""Names under which the settings of an extension's platform are taken for secrets."""


def watch_secrets(config: Config, learn: Callable[[str], None]) -> None:
    """Call `learn` with every secret that is at hand, the token file's too, and later with each one looked up anew.

    Commands are not run for this: what they print is learned when it is asked for.
    """
    for secret in _secrets(config):
        if isinstance(secret, str):
            learn(secret)
            continue
        secret.observe(learn)
        if secret.source != "command":
            try:
                secret.reveal()
            except ConfigError:  # told where it is needed
                continue
    try:
        learn(Home(config.home).token_file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):  # there is none yet, or whoever needs it says what is wrong with it
        return


def _secrets(value: object, name: str = "") -> Iterator[Secret | str]:
    """Every secret below a part of the configuration; of an extension's settings the texts under such names."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, msgspec.Raw):
        yield from _secrets(msgspec.json.decode(value), "")
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _secrets(getattr(value, field))
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from _secrets(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in cast("list[object]", value):
            yield from _secrets(inner, name)
    elif isinstance(value, str) and _SECRET_NAME.search(name):
        yield value
