"""The providers and platforms that setup offers, and the formats of their keys and tokens."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec

from shoal.config.defaults import DEMO, KNOWN_PROVIDERS
from shoal.extensions import extensions, platform_named
from shoal.kernel.errors import ConfigError
from shoal.platforms.record import BUILT_IN, Platform

log = logging.getLogger(__name__)

SERVER = "server"
"""Choice of any other server with an OpenAI-compatible API."""
OWN_SERVER = "mine"
DEMO_TITLE = "None yet: use the built-in demo"
NO_CHAT = "none"
NO_CHAT_TITLE = "None: I will use the web page and the terminal"


def provider_titles() -> Mapping[str, str]:
    """Return the providers that setup offers, with their titles: well-known services, the user's own server, and
    providers of installed packages. The demo is excluded.
    """
    titles = {name: known.title for name, known in KNOWN_PROVIDERS.items()}
    local = titles.pop("local")
    server = "Another OpenAI-compatible server: llama.cpp, LM Studio, vLLM, …"
    added = {name: f"{name}, from an installed package" for name in extensions("shoal.providers")}
    return {**titles, SERVER: server, "local": local, **added}


def provider_names() -> Sequence[str]:
    return (*provider_titles(), DEMO)


def table_of(provider: str) -> str:
    return OWN_SERVER if provider == SERVER else provider


def key_kind(provider: str) -> str:
    """Return the kind of key that a provider requires, such as "an OpenAI key", or an empty string."""
    return KNOWN_PROVIDERS[provider].key_kind if provider in KNOWN_PROVIDERS else ""


def platform_names() -> Sequence[str]:
    """Return the names of platforms and NO_CHAT, without importing the platforms' records."""
    return (*BUILT_IN, *extensions("shoal.platforms"), NO_CHAT)


@cache
def platforms() -> Mapping[str, Platform]:
    """Return the platforms that have setup questions: first the built-in ones, then those of installed packages.

    Invalid records of packages are logged and skipped.
    """
    platforms: dict[str, Platform] = {}
    for name in platform_names()[:-1]:
        try:
            record = platform_named(name)
        except ConfigError as error:
            log.warning("loading package platform failed", extra={"platform": name, "problem": str(error)})
            continue
        if record.questions:
            platforms[name] = record
    return platforms


def lacking_package(choice: str) -> str:
    """Return the name of the missing module that a provider or built-in platform requires, or an empty string.

    The extra that installs the module has the same name as the choice.
    """
    package = "xllamacpp" if choice == "local" else platforms()[choice].package if choice in BUILT_IN else ""
    return package if package and find_spec(package) is None else ""


@cache
def shapes() -> Sequence[tuple[str, str]]:
    """Return each known kind of key or token, with a pattern that matches its prefix. Longer prefixes of model
    keys come first.
    """
    keys = [(known.key_kind, re.escape(known.key_begins)) for known in KNOWN_PROVIDERS.values() if known.key_begins]
    keys.sort(key=lambda shape: -len(shape[1]))
    return (*keys, *(shape for platform in platforms().values() for shape in platform.secret_shapes))


_RUN = re.compile(r"[A-Za-z0-9]{20,}+")


def kind_of_secret(value: str) -> str:
    return next((kind for kind, shape in shapes() if re.match(shape, value)), "")


def looks_secret(value: str) -> bool:
    """Return True if a text may be a key or token: it has a known format, or is long and mixes letters and digits."""
    if any(kind_of_secret(word) for word in value.split()):
        return True
    runs = (match[0] for match in _RUN.finditer(value)) if "/" not in value else ()
    return any(not run.isalpha() and not run.isdecimal() for run in runs)


def mistaken(value: str, wanted: str) -> str:
    """Return an error message if a secret is clearly not of the `wanted` kind. Otherwise return an empty string."""
    kind = kind_of_secret(value) or wanted
    return "" if kind == wanted else f"That is {kind}, not {wanted}."


def bot_of(token: str) -> str:
    """Return the bot's id in a Telegram or Discord token, or an empty string for other tokens."""
    match = re.match(r"(\d{5,}):|([\w-]{23,28})\.[\w-]{6,7}\.", token)
    return match[match.lastindex or 0] if match else ""
