"""Configuration: any input either loads or produces problems in full sentences that contain no secret."""

import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from shoal.config import Config, ConfigError, load_config
from shoal.kernel.schema import Hint, bare, choices, is_section, keys, list_of, table_of
from shoal.kernel.secret import Secret
from tests.fuzz.inputs import Json, any_json, any_text, damaged
from tests.fuzz.target import Attempt

CANARY = "canary-0123456789-secret"
SAMPLE = """
[model]
name = "openai/gpt-5"
fallback = ["a/b"]
[providers.mine]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key = "CANARY"
headers = { X-Key = "CANARY" }
[database]
url = "postgresql://u:CANARY@h/d"
[sandbox]
network = ["example.org"]
[permissions]
default_profile = "p"
[permissions.profiles.p]
extends = "standard"
deny = ["tool:bash:rm.*"]
[[permissions.overrides]]
users = ["telegram:5"]
allow = ["tool:read:.*"]
[platforms.telegram]
token = "CANARY"
allow = ["5"]
[[platforms.slack]]
bot_token = "CANARY"
account = "one"
[[platforms.slack]]
account = "two"
signing_secret = { env = "X" }
[triggers.webhooks.git]
secret = "CANARY"
""".replace("CANARY", CANARY)
_FREE_NAMES = ("mine", "openai", "anthropic", "git", "standard", "")


@contextmanager
def target() -> Generator[Attempt]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)

        def attempt(source: random.Random) -> None:
            content = damaged(source, SAMPLE.encode()) if source.random() < 0.8 else SAMPLE.encode()
            (home / "shoal.toml").write_bytes(content)
            overrides = dict(_setting(source) for _ in range(source.randint(0, 3)))
            environ = {"SHOAL_" + "__".join(_path(source)[0]).upper(): any_text(source, 3) for _ in range(2)}
            environ["OPENAI_API_KEY"] = CANARY
            try:
                config = load_config(home, environ, overrides)
                told = repr(config)
            except ConfigError as error:
                told = "\n".join(error.problems) or CANARY
            assert CANARY not in told, told

        yield attempt


def _path(source: random.Random) -> tuple[list[str], Hint]:
    hint: Hint = Config
    path: list[str] = []
    while source.random() < 0.95:
        plain = bare(hint)
        account = list_of(plain)
        section = account if is_section(account) else plain
        if is_section(section):
            key = source.choice(list(keys(section).values()))
            path.append(key.name)
            hint = key.hint
        elif table_of(plain) is not None:
            path.append(source.choice(_FREE_NAMES))
            hint = table_of(plain)
        else:
            break
    return path, hint


def _setting(source: random.Random) -> tuple[str, Json]:
    path, hint = _path(source)
    name = ".".join(path)
    if any(bare(choice) is Secret for choice in choices(bare(hint))):
        wrong: list[Json] = [CANARY, [CANARY], {"value": CANARY}, {"env": "NOT_SET_ANYWHERE"}, {"file": "/nowhere"}, 3]
        return name, source.choice(wrong)
    return name, any_json(source)
