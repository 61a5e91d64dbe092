"""What setting up asks for: whose model, which chat, and which keys and tokens these need."""

import re

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

CHATS = {
    "telegram": "Telegram",
    "discord": "Discord",
    "slack": "Slack",
    "matrix": "Matrix",
    "teams": "Microsoft Teams",
    "google_chat": "Google Chat",
    "none": "None: the page and the terminal are enough",
}
QUESTIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "telegram": (("token", "Token of your bot, from @BotFather (/newbot)", "a Telegram bot token"),),
    "discord": (("token", "Token of your bot (Developer Portal, Bot, Reset Token)", "a Discord bot token"),),
    "slack": (
        ("bot_token", "Bot token (xoxb-…, OAuth & Permissions)", "a Slack bot token"),
        ("app_token", "App-level token (xapp-…, Basic Information)", "a Slack app-level token"),
    ),
    "matrix": (
        ("homeserver", "Address of the homeserver, https://…", ""),
        ("user", "The bot's user id, @name:server", ""),
        ("access_token", "The bot's access token", "a Matrix access token"),
    ),
    "teams": (
        ("app_id", "Microsoft App ID (Azure portal, your bot, Configuration)", ""),
        ("tenant", "App Tenant ID (there)", ""),
        ("app_password", "Client secret, its value and not its id (Manage Password)", "a client secret"),
    ),
    "google_chat": (
        ("service_account_file", "Key file (JSON) of the app's service account", ""),
        ("audience", "Authentication audience (Google Chat API, Configuration): the project's number", ""),
        ("subscription", "Pub/Sub subscription, projects/…/subscriptions/… (- where Google calls this server)", ""),
    ),
}
"""What each platform's account needs: the key, the question, and what kind of secret it is (empty: none)."""
USER_IDS = {
    "teams": "Your object id (Microsoft Entra, Users, you)",
    "google_chat": "Your user id, the number after users/",
}
"""What the owner is asked for where the platform calls a server that does not run yet."""

PACKAGES = {"discord": "websockets", "slack": "websockets", "teams": "jwt", "google_chat": "jwt", "local": "xllamacpp"}
"""What is imported first of the extra that a choice needs."""

SHAPES = (
    ("an Anthropic key", r"sk-ant-"),
    ("an OpenRouter key", r"sk-or-"),
    ("an OpenAI key", r"sk-"),
    ("a Google key", r"AIza"),
    ("a Slack bot token", r"xoxb-"),
    ("a Slack app-level token", r"xapp-"),
    ("a Slack user token", r"xox[pe]"),
    ("a Matrix access token", r"(?:syt|mct|mat)_"),
    ("a Telegram bot token", r"\d{5,}:[\w-]{20,}$"),
    ("a Discord bot token", r"[\w-]{23,28}\.[\w-]{6,7}\.[\w-]{27,}$"),
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
