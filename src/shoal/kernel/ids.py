"""Ids and their text forms: thread ids with safely encoded parts, and time-ordered unique ids."""

import hashlib
import re
from functools import lru_cache
from typing import NewType

import msgspec

from shoal.kernel.errors import InvalidId
from shoal.kernel.untrusted import is_text

ThreadId = NewType("ThreadId", str)
"""`platform:channel:thread`, each part encoded by `encode_part`."""
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
ApprovalId = NewType("ApprovalId", str)
CardId = NewType("CardId", str)
"""Of the card that asks for several calls of one message together."""

PART_CHARS_MAX = 180
"""Longest encoded part; three parts and a file name stay below the 255 bytes of common file systems."""
UNOPENED = "-"
"""The thread part of what is posted to a channel, to open a thread there."""
WHOLE_CHANNEL = "0"
"""The thread part of what is a whole channel."""
OWN_PLATFORMS = frozenset({"web", "openai", "terminal"})
"""Platforms of the page, the API and this machine: the owner reaches them, and whom a token lets in."""
SUBAGENTS = "agent"
"""The platform of threads that calls begin. Nobody reads along there: what is for people goes to the root's channel."""
PERSONAL = "@"
"""Channels of OWN_PLATFORMS that begin so belong to the one person who is named behind it."""

_UNSAFE = re.compile(r'[/\\:*?"<>|%\x00-\x1f\x7f]')
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
KNOWN_MAX = 512
"""Thread ids that are kept in both forms: a conversation asks for its own dozens of times a turn."""
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)


class ThreadAddress(msgspec.Struct, frozen=True):
    """The decoded parts of a thread id, as the platform knows them."""

    platform: str
    channel: str
    thread: str


def encode_part(text: str) -> str:
    """Encode one part so that it is safe in a thread id and as a file name; `decode_part` inverts it.

    Each of `/ \\ : * ? " < > | %` and control characters becomes `%HH`; `.` and `..` are encoded whole.
    """
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return _UNSAFE.sub(lambda found: f"%{ord(found.group()):02X}", text)


def decode_part(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), text)


@lru_cache(KNOWN_MAX)
def make_thread_id(platform: str, channel: str, thread: str) -> ThreadId:
    """Build a thread id from the platform's own (decoded) parts.

    Raises InvalidId when a part is empty or, encoded, longer than PART_CHARS_MAX.
    """
    parts = [encode_part(part) for part in (platform, channel, thread)]
    return parse_thread_id(":".join(parts))


def personal_channel(identity: str) -> str:
    """The channel of the page and the API in which somebody (PLATFORM:USER) speaks who has a token of their own."""
    user = identity.removeprefix("web:")
    channel = f"{PERSONAL}{user}"
    if len(encode_part(channel)) <= PART_CHARS_MAX:
        return channel
    return f"{PERSONAL}#{hashlib.sha256(user.encode()).hexdigest()}"


def is_personal(thread: ThreadId) -> bool:
    """Whether a thread is in such a channel, so that it shows nothing of other conversations, whoever asks there."""
    platform, channel, _ = thread.split(":")
    return platform in OWN_PLATFORMS and channel.startswith(PERSONAL)


def is_child(thread: ThreadId) -> bool:
    """Whether a thread was begun by a call, so that no person writes or reads there."""
    return thread.startswith(f"{SUBAGENTS}:")


def unopened(platform: str, channel: str) -> ThreadId:
    """Where a post stands that is to open a thread in a channel. Raises InvalidId."""
    return make_thread_id(platform, channel, UNOPENED)


def parse_thread_id(text: str) -> ThreadId:
    """Check the text form of a thread id and return it typed. Raises InvalidId saying what is wrong."""
    parts = text.split(":")
    if len(parts) != 3:
        raise InvalidId(f"Thread id {text[:80]!r} must have three parts: platform:channel:thread.")
    for part in parts:
        if not part or len(part) > PART_CHARS_MAX:
            raise InvalidId(f"Thread id {text[:80]!r}: every part needs 1 to {PART_CHARS_MAX} characters.")
        if not is_text(part):
            raise InvalidId(f"Thread id {text[:80]!r}: lone surrogates are no text.")
        if encode_part(decode_part(part)) != part:
            raise InvalidId(f"Thread id {text[:80]!r}: write the unsafe characters of {part[:40]!r} as %HH.")
    return ThreadId(text)


@lru_cache(KNOWN_MAX)
def thread_address(thread: ThreadId) -> ThreadAddress:
    platform, channel, name = thread.split(":")
    return ThreadAddress(decode_part(platform), decode_part(channel), decode_part(name))


def platform_of(thread: str) -> str:
    return thread.split(":", 1)[0]


def channel_of(thread: ThreadId) -> str:
    """What the ids of all threads of this one's channel begin with."""
    return thread[: thread.rindex(":") + 1]


def format_ulid(at_milliseconds: int, entropy: bytes) -> str:
    """26 characters that sort by time: 48 bits of milliseconds, 80 bits of `entropy`. Source: the ULID spec."""
    number = (at_milliseconds << 80) | int.from_bytes(entropy, "big")
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


HEARTBEAT_THREAD = make_thread_id("web", "lobby", "heartbeat")
"""Where heartbeats run, each without any history: no conversation."""
