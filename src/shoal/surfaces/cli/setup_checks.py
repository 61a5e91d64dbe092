"""What `shoal setup` looks at besides models and tokens: a port, a foreign directory, who owns a bot."""

import asyncio
import os
import secrets
import socket
from pathlib import Path

from shoal.config import Config
from shoal.domain.errors import PlatformError
from shoal.domain.messages import Prompt
from shoal.domain.posts import OutboundPost
from shoal.permissions.access import code_digest, is_code, make_code
from shoal.setup.trying import adapter_of, connected
from shoal.store.store import Store

WRITE_SECONDS = 600.0
"""How long a person may take to write to their bot."""

OF_OTHERS = {
    "openclaw.json": "openclaw", "clawdbot.json": "openclaw", "hermes_state.db": "hermes", "state.db": "hermes",
    "SOUL.md": "hermes", "webui.db": "openwebui", "config.json": "nanobot",
}  # fmt: skip
"""Files at the top of other products' directories."""


def not_ours(root: Path) -> str:
    """A sentence where a directory belongs to something else, wholly or in part; empty where a home may be there."""
    try:
        names = sorted(set(os.listdir(root)) - {"lost+found", ".DS_Store"})
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{root} cannot be used: {error.strerror}. Choose another directory, or make it yours."
    other = next((product for name, product in OF_OTHERS.items() if name in names), "")
    if other and not {"shoal.db", "agents"} <= set(names):
        text = f"{root} belongs to another product ({other})"
        return f"{text}. Choose another directory; `shoal import {other} {root}` brings its content over."
    if names and not {"shoal.toml", "token", "shoal.db"} & set(names):
        return f"{root} holds other files ({', '.join(names[:3])}). Choose an empty directory, or a new one."
    return ""


def unwritable(root: Path) -> str:
    """A sentence where nothing can be written at a directory, or where it would be made."""
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if there == root and not root.is_dir():
        return f"{root} is a file. Choose another directory."
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{root} cannot be written by this user. Choose another directory, or correct the rights of {there}."


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


# ---- the owner of a bot: whoever is shown the code in the chat and types it at the terminal ----


async def hear(config: Config, platform: str, store: Store) -> tuple[Prompt, str]:
    """Wait for somebody who writes to the bot directly, and show them a code there; returns what they wrote, and that.

    Raises PlatformError when the connection fails or nobody writes.
    """
    async with connected(config, platform, store.settings) as (adapter, inbox):
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                prompt = await inbox.prompts.get()
        except TimeoutError as error:
            raise PlatformError(f"Nobody wrote within {WRITE_SECONDS / 60:.0f} minutes.") from error
        code = make_code(secrets.token_bytes(16))
        text = f"Your code is {code}. Type it where `shoal setup` is running, and you are my owner."
        await adapter.post(OutboundPost(prompt.thread, f"setup:{code}", text))
        return prompt, code


async def greet(config: Config, platform: str, store: Store, prompt: Prompt) -> None:
    """Post the first message to the owner. Raises PlatformError."""
    adapter = adapter_of(config, platform, store.settings)
    try:
        text = "You are my owner now. As soon as Shoal is running I answer here."
        await adapter.post(OutboundPost(prompt.thread, f"setup:{prompt.key}", text))
    finally:
        await adapter.close()


def is_right(typed: str, code: str) -> bool:
    """Whether that is the code, however it is typed."""
    return is_code(typed, code_digest(code))
