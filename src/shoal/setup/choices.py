"""What setting up asks for: whose model, which chat, and which keys and tokens these need."""

import re

from shoal.platforms.record import BUILT_IN, built_in

MODELS = {
    "anthropic": "Anthropic, with a key",
    "openai": "OpenAI, with a key",
    "gemini": "Google Gemini, with a key",
    "openrouter": "OpenRouter, with a key",
    "ollama": "Ollama on this machine",
    "server": "Another server with OpenAI's interface: llama.cpp, LM Studio, vLLM, …",
    "local": "A model file (GGUF) that Shoal runs itself",
    "demo": "None yet: the built-in demo answers",
}
OWN_SERVER = "mine"
"""What the provider is called that somebody else's server with OpenAI's interface becomes."""
KEYS = {"anthropic": "an Anthropic key", "openai": "an OpenAI key", "gemini": "a Google key",
        "openrouter": "an OpenRouter key"}  # fmt: skip

_PLATFORMS = {name: built_in(name) for name in BUILT_IN}
CHATS = {
    **{name: platform.title for name, platform in _PLATFORMS.items()},
    "none": "None: the page and the terminal are enough",
}
QUESTIONS = {name: platform.questions for name, platform in _PLATFORMS.items()}
"""What each platform's account needs."""
USER_IDS = {name: platform.owner_question for name, platform in _PLATFORMS.items() if platform.owner_question}
"""What the owner is asked for where the platform calls a server that does not run yet."""

PACKAGES = {**{name: platform.package for name, platform in _PLATFORMS.items()}, "local": "xllamacpp"}
"""What is imported first of the extra that a choice needs."""

SHAPES = (
    ("an Anthropic key", r"sk-ant-"),
    ("an OpenRouter key", r"sk-or-"),
    ("an OpenAI key", r"sk-"),
    ("a Google key", r"AIza"),
    *(shape for platform in _PLATFORMS.values() for shape in platform.secret_shapes),
)
"""What keys and tokens begin with, the narrower ones first."""


_RUN = re.compile(r"[A-Za-z0-9]{20,}+")


def kind_of_secret(value: str) -> str:
    """What kind of key or token this is by its form; empty for other text."""
    return next((kind for kind, shape in SHAPES if re.match(shape, value)), "")


def looks_secret(value: str) -> bool:
    """Whether a text may be a key or token of any service: known by its form, or long with letters and digits mixed."""
    if any(kind_of_secret(word) for word in value.split()):
        return True
    runs = (found[0] for found in _RUN.finditer(value)) if "/" not in value else ()
    return any(not run.isalpha() and not run.isdecimal() for run in runs)


def mistaken(value: str, wanted: str) -> str:
    """A sentence where a secret is plainly another one than the `wanted` kind; empty where it may be right."""
    found = kind_of_secret(value) or wanted
    return "" if found == wanted else f"That is {found}, not {wanted}."


def bot_of(token: str) -> str:
    """What tells in a token whose it is: the bot's id on Telegram and Discord; empty for others."""
    found = re.match(r"(\d{5,}):|([\w-]{23,28})\.[\w-]{6,7}\.", token)
    return found[found.lastindex or 0] if found else ""
