"""Thread ids, whose parts are encoded as safe file names, and unique ids that sort by time."""

import hashlib
from functools import lru_cache
from typing import NewType

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidId
from shoal.kernel.untrusted import is_text

ThreadId = NewType("ThreadId", str)
"""`platform:channel:thread`, with each part encoded by `encode_part`."""
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
ApprovalId = NewType("ApprovalId", str)
CardId = NewType("CardId", str)
"""Id of an approval card that covers several calls of one message."""

PART_CHARS_MAX = 180
"""Maximum length of an encoded part, in characters. Parts are directory names, which most file systems limit to 255
bytes.
"""
UNOPENED = "-"
"""Thread part of a post that opens a new thread in its channel."""
WHOLE_CHANNEL = "0"
"""Thread part of an id that denotes an entire channel."""
OWN_PLATFORMS = frozenset({"web", "openai", "terminal"})
"""Platforms that Shoal itself provides: the page, the API and the local terminal. The owner and people with a token use
them.
"""
SUBAGENTS = "agent"
"""Platform of threads that tool calls start. People do not read these threads, so messages for people are sent to the
root thread's channel.
"""
PERSONAL = "@"
"""Prefix of channels on OWN_PLATFORMS that belong to one person."""

_UNSAFE = lazy_re.compile(r'[/\\:*?"<>|%\x00-\x1f\x7f]')
_ESCAPE = lazy_re.compile(r"%([0-9A-F]{2})")
KNOWN_MAX = 512
"""Maximum number of thread ids per cache. Each turn converts its own id dozens of times."""
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)


class ThreadAddress(msgspec.Struct, frozen=True):
    """The decoded parts of a thread id, as the platform knows them."""

    platform: str
    channel: str
    thread: str


def encode_part(text: str) -> str:
    r"""Encode one part of a thread id so it is also a safe file name. `decode_part` reverses this.

    Control characters and each of `/ \ : * ? " < > | %` become `%HH`. The parts `.` and `..` are encoded too.
    """
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", text)


def decode_part(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), text)


@lru_cache(KNOWN_MAX)
def make_thread_id(platform: str, channel: str, thread: str) -> ThreadId:
    """Build a thread id from parts that are not encoded.

    Raises InvalidId if a part is empty, or longer than PART_CHARS_MAX after encoding.
    """
    parts = [encode_part(part) for part in (platform, channel, thread)]
    return parse_thread_id(":".join(parts))


def personal_channel(identity: str) -> str:
    """Return the channel of a person who uses the page or the API with their own token. `identity` is PLATFORM:USER."""
    user = identity.removeprefix("web:")
    channel = f"{PERSONAL}{user}"
    if len(encode_part(channel)) <= PART_CHARS_MAX:
        return channel
    return f"{PERSONAL}#{hashlib.sha256(user.encode()).hexdigest()}"


def is_personal(thread: ThreadId) -> bool:
    """Return True for a thread in a personal channel. Such a thread shows nothing from other conversations."""
    platform, channel, _ = thread.split(":")
    return platform in OWN_PLATFORMS and channel.startswith(PERSONAL)


def is_child(thread: ThreadId) -> bool:
    """Return True for a thread that a tool call started. People do not read or write there."""
    return thread.startswith(f"{SUBAGENTS}:")


def unopened(platform: str, channel: str) -> ThreadId:
    return make_thread_id(platform, channel, UNOPENED)


def parse_thread_id(text: str) -> ThreadId:
    """Check that a text is a valid thread id. Raises InvalidId with the reason."""
    parts = text.split(":")
    if len(parts) != 3:
        raise InvalidId(f"Thread id {text[:80]!r} must have three parts: platform:channel:thread.")
    for part in parts:
        if not part or len(part) > PART_CHARS_MAX:
            raise InvalidId(f"Thread id {text[:80]!r}: every part needs 1 to {PART_CHARS_MAX} characters.")
        if not is_text(part):
            raise InvalidId(f"Thread id {text[:80]!r} contains invalid Unicode (a lone surrogate).")
        if encode_part(decode_part(part)) != part:
            raise InvalidId(f"Thread id {text[:80]!r}: encode the unsafe characters of {part[:40]!r} as %HH.")
    return ThreadId(text)


@lru_cache(KNOWN_MAX)
def thread_address(thread: ThreadId) -> ThreadAddress:
    platform, channel, name = thread.split(":")
    return ThreadAddress(decode_part(platform), decode_part(channel), decode_part(name))


def platform_of(thread: str) -> str:
    return thread.split(":", 1)[0]


def channel_of(thread: ThreadId) -> str:
    """Return `PLATFORM:CHANNEL:`, the prefix of all thread ids in the channel."""
    return thread[: thread.rindex(":") + 1]


def format_ulid(at_milliseconds: int, entropy: bytes) -> str:
    """Format a ULID, which has 26 characters and sorts by time.

    It consists of 48 bits of milliseconds and 80 bits of entropy. Source: https://github.com/ulid/spec
    """
    number = (at_milliseconds << 80) | int.from_bytes(entropy, "big")
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


HEARTBEAT_THREAD = make_thread_id("web", "lobby", "heartbeat")
"""Thread in which heartbeats run, each without history."""
