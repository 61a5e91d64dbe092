"""Records of another product's data, and lenient parsers for its values. The parsers never raise.

Everything that a reader skips is listed with a reason.
"""

import hashlib
import json
import math
import re
from collections.abc import Container, Iterable
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Entry: TypeAlias = tuple[object, object, object]
"""Role, content and time of a stored message."""

DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Range of plausible times for a message or schedule. LATEST is excluded."""


class ImportedMessage(msgspec.Struct, frozen=True):
    """A message with its time and author. `name` is the author's name, if known."""

    role: Literal["user", "assistant"]
    text: str
    at: datetime
    name: str = ""


class FoundThread(msgspec.Struct, frozen=True):
    """A conversation. `key` is its id in the other product."""

    key: str
    agent: str
    title: str
    messages: list[ImportedMessage]


class FoundSkill(msgspec.Struct, frozen=True):
    """A skill. `files` contains its files by their path in the skill's folder. `title` is its original name."""

    name: str
    files: dict[str, bytes]
    title: str = ""


class FoundAgent(msgspec.Struct):
    name: str
    title: str = ""
    """Name of the agent in the other product."""
    files: dict[str, str] = {}
    documents: dict[str, str] = {}
    memory: list[str] = []
    notes: dict[date, list[str]] = {}
    skills: list[FoundSkill] = []
    model: str = ""
    """Name of the model, as PROVIDER/MODEL."""
    system_prompt: str = ""

    def add_skill(self, skill: FoundSkill, origin: str) -> None:
        """Add a skill. If its name is in use, append a digest of `origin` to it."""
        name = distinct(skill.name, origin, {skill.name for skill in self.skills})
        self.skills.append(msgspec.structs.replace(skill, name=name))


class FoundSchedule(msgspec.Struct, frozen=True):
    """A schedule that starts turns. `schedule` is a cron expression, or an ISO 8601 time if `kind` is `one-shot`."""

    name: str
    kind: Literal["one-shot", "periodic"]
    schedule: str
    text: str
    timezone: str = "UTC"
    agent: str = ""
    reports_to: str = ""


class FoundAccount(msgspec.Struct, frozen=True):
    """An account on a platform that Shoal supports.

    - `allow`: people who may write.
    - `settings`: other keys of the account's configuration section.
    - `secrets`: secrets of that section, by key.
    """

    platform: str
    allow: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    secrets: dict[str, str] = {}


class FoundProvider(msgspec.Struct, frozen=True):
    """A model provider. An empty `kind` means the well-known provider of that name."""

    name: str
    kind: str = ""
    base_url: str = ""
    key: str = ""


class Left(msgspec.Struct, frozen=True):
    """A skipped item and the reason."""

    what: str
    why: str


class Found(msgspec.Struct):
    """The contents of another product's home. `title` is the display name of the product.

    The first agent was the product's default agent.
    """

    product: str
    root: Path
    title: str = ""
    agents: list[FoundAgent] = []
    threads: list[FoundThread] = []
    schedules: list[FoundSchedule] = []
    accounts: list[FoundAccount] = []
    providers: list[FoundProvider] = []
    model: str = ""
    fallback: tuple[str, ...] = ()
    left: list[Left] = []

    def leave(self, what: str, why: str) -> None:
        """Record a skipped item. Repeated calls with the same item and reason have no effect."""
        if Left(what, why) not in self.left:
            self.left.append(Left(what, why))

    def add_agent(self, agent: FoundAgent, origin: str) -> FoundAgent:
        """Add an agent. If its name is in use, append a digest of `origin` to it."""
        agent.name = distinct(agent.name, origin, {agent.name for agent in self.agents})
        self.agents.append(agent)
        return agent

    def add_account(
        self, platform: str, allow: tuple[str, ...], settings: dict[str, str], secrets: dict[str, str]
    ) -> None:
        """Add an account. Empty settings and secrets are dropped."""
        filled = ({key: value for key, value in setting.items() if value} for setting in (settings, secrets))
        self.accounts.append(FoundAccount(platform, allow, *filled))

    def add_thread(self, key: str, agent: str, title: str, entries: Iterable[Entry], since: datetime) -> int:
        """Add a conversation that began at `since`, and return the number of its tool results.

        A message without a time gets the time of the previous message.
        """
        messages, results, at = list[ImportedMessage](), 0, since
        for role, content, when in entries:
            at = time_of(when) or at
            results += role in ("tool", "toolResult")
            text = message_text(content)
            if text and role in ("user", "assistant"):
                messages.append(ImportedMessage("user" if role == "user" else "assistant", text, at))
        if messages:
            self.threads.append(FoundThread(key, agent, title or messages[0].text, messages))
        else:
            self.leave(f"{agent}: conversation {title or key}", "it is empty")
        return results

    def leave_results(self, agent: str, results: int) -> None:
        if results:
            what = counted(results, "tool result", "tool results")
            self.leave(f"{agent}: {what}", "messages are imported, but tool results are not")

    def add_schedule(
        self, name: str, text: str, at: datetime | None, line: str, zone: str, agent: str, reports_to: str = ""
    ) -> None:
        """Add a one-time schedule if `at` is set, or a cron schedule if `line` is set.

        Any other schedule, and a schedule without text, is recorded as skipped.
        """
        if not text:
            self.leave(f"schedule {name}", "it has no text for an agent")
        elif at is not None:
            self.schedules.append(FoundSchedule(name, "one-shot", at.isoformat(), text, "UTC", agent, reports_to))
        elif line:
            self.schedules.append(FoundSchedule(name, "periodic", line, text, zone, agent, reports_to))
        else:
            self.leave(f"schedule {name}", "its schedule is invalid or cannot be written as a cron expression")


# ---- names ----


def slug(name: str) -> str:
    """Convert a name to a valid name for an agent or skill: lowercase letters, digits and single hyphens.

    If characters are lost, append a digest of the original name, so different names stay distinct.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    is_whole = safe and len(safe) <= 48 and not any(char.isalnum() and not char.isascii() for char in name)
    return safe if is_whole else f"{safe[:39]}-{_digest(name)}".lstrip("-")


def distinct(name: str, origin: str, taken: Container[str]) -> str:
    """Return the name. If it is in `taken`, append a digest of `origin`."""
    return f"{name[:80]}-{_digest(origin)}" if name in taken else name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# ---- values ----


def parsed(text: object) -> Json:
    """Parse JSON text and apply `clean` to it. Return an empty dict if the text is not valid JSON."""
    try:
        value = cast("Json", json.loads(text)) if isinstance(text, str) else {}
        return clean(value) if isinstance(text, str) and "\\u" in text else value
    except (ValueError, RecursionError):
        return {}


def clean(value: Json) -> Json:
    """Return the value without NULs and lone surrogates. JSON allows both, but databases reject NULs and UTF-8 cannot
    encode lone surrogates.
    """
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {cast("str", clean(key)): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value


def as_dict(value: object) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> "list[Json]":
    return cast("list[Json]", value) if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Convert a string or number to a string without surrounding whitespace. Return "" for any other value."""
    return str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def number_of(value: object) -> float:
    """Convert a number or numeric string to a float. Return 0 for any other value and for non-finite numbers."""
    try:
        number = float(text_of(value) or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def day_of(name: str) -> date | None:
    """Return the date in the file name of a daily note, or None."""
    match = DAY.search(name)
    try:
        return date(int(match[1]), int(match[2]), int(match[3])) if match else None
    except ValueError:
        return None


def time_of(value: object, zone: tzinfo | None = None) -> datetime | None:
    """Parse a Unix time in seconds, milliseconds or nanoseconds, or an ISO 8601 time.

    A time without an offset is in `zone`, or in the local time zone if `zone` is None. Return None for any other
    value and for implausible times.
    """
    try:
        if number := number_of(value):
            while number > 1e11:
                number /= 1000
            at = datetime.fromtimestamp(number, UTC)
        else:
            at = datetime.fromisoformat(text_of(value))
            at = (at if at.tzinfo or zone is None else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at if EARLIEST <= at < LATEST else None


def message_text(content: object) -> str:
    """Return the text of a message. If the content is a list of blocks, only its text blocks count."""
    if isinstance(content, str):
        plain = content.removeprefix("\0json:")  # Hermes Agent marks blocks with this prefix
        return (message_text(parsed(plain)) if plain.startswith("[{") else "") or plain.replace("\0", "").strip()
    blocks = [as_dict(item) for item in as_list(content)]
    texts = [
        block.get("text") or block.get("content")
        for block in blocks
        if block.get("type") in ("text", "input_text", None)
    ]
    return "\n".join(text for text in texts if isinstance(text, str)).replace("\0", "").strip()


def cron_of(seconds: float) -> str:
    """Return a cron expression with this interval, or an empty string if none exists."""
    minutes, rest = divmod(round(seconds), 60)
    if rest == 0 and minutes and minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *"
    hours, rest = divmod(minutes, 60)
    if rest == 0 and hours and hours < 24 and 24 % hours == 0:
        return f"0 */{hours} * * *"
    return {24: "0 9 * * *", 168: "0 9 * * 1"}.get(hours, "") if rest == 0 else ""
