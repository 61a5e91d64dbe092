"""Time zones by the names that people write, and detection of this machine's zone."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.kernel.errors import InvalidInput

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

NAME_CHARS_MAX = 64
ABBREVIATIONS: Mapping[str, tuple[str, ...]] = {
    "CEST": ("Europe/Berlin",),
    "MEZ": ("Europe/Berlin",),
    "MESZ": ("Europe/Berlin",),
    "WEST": ("Europe/Lisbon",),
    "EEST": ("Europe/Athens",),
    "BST": ("Europe/London",),
    "MSK": ("Europe/Moscow",),
    "JST": ("Asia/Tokyo",),
    "KST": ("Asia/Seoul",),
    "IST": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "CST": ("America/Chicago", "Asia/Shanghai"),
    "EDT": ("America/New_York",),
    "CDT": ("America/Chicago",),
    "MDT": ("America/Denver",),
    "PST": ("America/Los_Angeles",),
    "PDT": ("America/Los_Angeles",),
    "AEST": ("Australia/Sydney",),
    "AEDT": ("Australia/Sydney",),
}
"""Most likely time zones for common abbreviations that are not IANA names."""
_NOT_NAMES = ("posix/", "right/", "localtime", "posixrules", "Factory")
"""Entries of the time zone database that are not usable zones. Zones below `right/` count leap seconds."""


def zone_named(name: str) -> "ZoneInfo":
    """Return the time zone for an IANA name in any case, a city, or an offset in whole hours such as UTC+2.

    Raises InvalidInput, whose message suggests similar names.
    """
    zone = _find(name)
    if zone is None:
        shown, near = name[:NAME_CHARS_MAX], nearest(name)
        hint = f"Did you mean {' or '.join(near)}?" if near else "Use an IANA name such as Europe/Berlin."
        raise InvalidInput(f"The time zone {shown!r} is not known. {hint}")
    return zone


def local_time(at: datetime) -> str:
    """Format a time with its zone, for example 2026-05-04 09:00 Europe/Berlin (UTC+02:00)."""
    name = getattr(at.tzinfo, "key", None)
    if at.tzinfo is None or name in (None, "UTC", "Etc/UTC"):
        return f"{at:%Y-%m-%d %H:%M} UTC"
    offset = at.strftime("%z")
    return f"{at:%Y-%m-%d %H:%M} {name} (UTC{offset[:3]}:{offset[3:5]})"


def nearest(name: str) -> list[str]:
    """Return up to three known names that are similar to an unknown one, most likely first."""
    from difflib import get_close_matches

    words = "_".join(name[:NAME_CHARS_MAX].split())
    if words.upper() in ABBREVIATIONS:
        return list(ABBREVIATIONS[words.upper()])
    by_lower = {known.lower(): known for known in _names()}
    by_city = {known.rpartition("/")[2]: known for known in by_lower}
    close = get_close_matches(words.lower(), by_lower, n=3, cutoff=0.6)
    close += [by_city[city] for city in get_close_matches(words.lower(), by_city, n=3, cutoff=0.7)]
    return [by_lower[folded_name] for folded_name in dict.fromkeys(close)][:3]


@lru_cache(maxsize=64)
def _find(name: str) -> "ZoneInfo | None":
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    wanted = "_".join(name.split())
    if not wanted or len(wanted) > NAME_CHARS_MAX or not wanted.isascii():
        return None
    folded = wanted.lower()
    # a case-insensitive file system would accept a lowercase name
    if wanted != folded and not wanted.startswith(_NOT_NAMES):
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(wanted)
    if folded == "z":
        return ZoneInfo("UTC")
    if folded.startswith(("utc+", "utc-", "gmt+", "gmt-")):
        # Etc/GMT-2 is two hours east of Greenwich
        hours, sign = folded[4:].removesuffix(":00"), "-" if folded[3] == "+" else "+"
        if hours.isdigit() and len(hours) <= 2 and f"Etc/GMT{sign}{int(hours)}" in _names():
            return ZoneInfo(f"Etc/GMT{sign}{int(hours)}")
        return None
    matches = [known for known in _names() if known.lower() == folded]
    if not matches and "/" not in wanted:
        matches = [known for known in _names() if known.lower().endswith(f"/{folded}")]
    # "Berlin" matches one zone. "Louisville" matches two, and the shorter name is preferred.
    return ZoneInfo(min(matches, key=lambda known: (len(known), known))) if matches else None


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    from zoneinfo import available_timezones

    return frozenset(name for name in available_timezones() if not name.startswith(_NOT_NAMES))


def local_zone(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str:
    """Return the IANA name of this machine's time zone.

    The sources, in order:
    - the environment variable TZ
    - the target of the link /etc/localtime
    - the zone file with the content of /etc/localtime, with /etc/timezone as a hint
    - /etc/timezone
    - UTC

    `root` is the directory that contains `etc`.
    """
    for name in _local_names(environ, root):
        zone = _find(name)
        if zone is not None:
            return zone.key
    return "UTC"


def _local_names(environ: Mapping[str, str], root: Path) -> Iterator[str]:
    variable = environ.get("TZ", "").removeprefix(":")
    if variable:
        yield _below_zoneinfo(variable) or variable
    link = root / "etc/localtime"
    with suppress(OSError):
        yield _below_zoneinfo(str(link.resolve(strict=True)))
    zone = ""
    with suppress(OSError, ValueError):
        zone = (root / "etc/timezone").read_text("ascii").strip()
    # In a container, /etc/timezone is often part of the image, while /etc/localtime is mounted from the host.
    with suppress(OSError):
        yield _by_content(link.read_bytes(), zone)
    yield zone


def _below_zoneinfo(path: str) -> str:
    _, _, below = path.rpartition("/zoneinfo")
    name = below.partition("/")[2]  # on macOS, the folder can be zoneinfo.default
    return name.removeprefix("posix/").removeprefix("right/")


def _by_content(content: bytes, expected: str) -> str:
    """Return the name of the zone file with this content, or an empty string. Prefers `expected` if its current
    rule matches.
    """
    rule = content.rstrip(b"\n").rpartition(b"\n")[2]
    same_rule = ""
    for name in (expected, *sorted(_names())):
        known = _content(name)
        if known == content or (name == expected and known.rstrip(b"\n").rpartition(b"\n")[2] == rule):
            return name
        if not same_rule and known.rstrip(b"\n").endswith(b"\n" + rule):
            same_rule = name
    return same_rule


def _content(name: str) -> bytes:
    import zoneinfo
    from importlib.resources import files

    for folder in zoneinfo.TZPATH:
        with suppress(OSError, ValueError):
            return Path(folder, name).read_bytes()
    with suppress(OSError, ValueError, ModuleNotFoundError):
        return files("tzdata").joinpath("zoneinfo", name).read_bytes()
    return b""
