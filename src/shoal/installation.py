"""Detect how Shoal was installed, and return the commands that run it or add an extra."""

import os
import re
import shlex
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.kernel.untrusted import UNREADABLE


class _Folder(msgspec.Struct, frozen=True):
    editable: bool = False


class _Source(msgspec.Struct, frozen=True):
    """The recorded source of an installed package (PEP 610). It is empty for a package from an index."""

    url: str = ""
    dir_info: _Folder = _Folder()


@cache
def source() -> tuple[str, bool]:
    """Return the source of this installation, and True if it is an editable checkout.

    The source is a path, or `shoal` if the package was installed from an index.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = msgspec.json.decode(distribution("shoal").read_text("direct_url.json") or "{}", type=_Source)
    except (PackageNotFoundError, *UNREADABLE):
        origin = _Source()
    parts = urlsplit(origin.url)
    return (unquote(parts.path) if parts.scheme == "file" else "shoal"), origin.dir_info.editable


def install_command(extra: str) -> list[str]:
    where, is_checkout = source()
    wanted = ["install", *(["--editable"] if is_checkout else []), f"{where}[{extra}]"]
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return ["pipx", "runpip", "shoal", *wanted]
    if find_spec("pip") is None:  # uv creates environments without pip
        return ["uv", "pip", *wanted[:1], "--python", sys.executable, *wanted[1:]]
    return [sys.executable, "-m", "pip", *wanted]


def how_to_add_package(package: str) -> str:
    """Return instructions for installing a missing package of Shoal. In a checkout, the package is in `packages/`."""
    where, is_checkout = source()
    command = install_command("")
    wanted = str(Path(where, "packages", package)) if is_checkout else package
    return f"Run: {shlex.join([*command[:-1], wanted])}"


def how_to_add(extra: str) -> str:
    return f"Run: {shlex.join(install_command(extra))}"


def program() -> str:
    """Return the command that runs this installation: `shoal` if that name resolves to it, otherwise its path."""
    called = sys.argv[0]
    if Path(called).name != "shoal":
        return "shoal"
    executable = shutil.which("shoal")
    return (
        "shoal"
        if executable and os.path.exists(called) and os.path.samefile(executable, called)
        else shlex.quote(called)
    )


def as_typed(text: str) -> str:
    """Replace `shoal` in all commands in the text with the command that works on this machine."""
    return re.sub(r"`shoal(?=[ `])", lambda _: f"`{program()}", text)
