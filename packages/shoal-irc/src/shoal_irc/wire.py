"""Parse, split and sanitize IRC lines. Sources: RFC 2812, IRCv3."""

import re
from typing import NamedTuple

from shoal.kernel.errors import PlatformError
from shoal.kernel.markup import Dialect
from shoal.markdown.dialects import around

LINE_BYTES_MAX = 512
"""Maximum length of a line, including the line ending and the sender's mask, which the server adds."""
MASK_BYTES_MAX = 100
_UNSEEN = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|[\x00-\x09\x0b-\x1f\x7f]")
_TAG = {":": ";", "s": " ", "r": "\r", "n": "\n"}

IRC_MARKUP = Dialect(
    text=lambda text: text,
    styles={"strong": around("\x02"), "em": around("\x1d"), "s": around("\x1e")},
    code=around("\x11"),
    opens=lambda url: False,
    heading=lambda text, level: f"\x02{text}\x02",
    fence=lambda content, info: content,
)


class Line(NamedTuple):
    """A line from the server. `source` is a server name or NICK!USER@HOST."""

    tags: dict[str, str]
    source: str
    command: str
    params: tuple[str, ...]

    def param(self, number: int) -> str:
        return self.params[number] if len(self.params) > number else ""


def parse(raw: bytes) -> Line:
    """Parse a line. Any input is accepted, because servers differ."""
    rest, tags, source = raw.decode("utf-8", "replace").strip("\r\n"), dict[str, str](), ""
    if rest.startswith("@"):
        given, _, rest = rest[1:].partition(" ")
        for tag in given.split(";"):
            name, _, value = tag.partition("=")
            tags[name] = re.sub(r"\\(.?)", lambda match: _TAG.get(match[1], match[1]), value)
    if rest.lstrip().startswith(":"):
        source, _, rest = rest.lstrip()[1:].partition(" ")
    middle, colon, last = rest.partition(" :")
    command, *params = [word for word in middle.split(" ") if word] or [""]
    return Line(tags, source, command.upper(), (*params, *([last] if colon else [])))


class Spoken(NamedTuple):
    """A message to the bot or to a channel, without the bot's nick at the start. Commands begin with `/`."""

    target: str
    nick: str
    mask: str
    text: str
    direct: bool
    named: bool


def spoken(line: Line, me: str) -> Spoken | None:
    """Parse a PRIVMSG. `me` is the nick of the bot.

    Return None for the bot's own messages, CTCP queries and messages to other recipients.
    """
    (nick, _, mask), target, words = line.source.partition("!"), line.param(0), line.param(1)
    if words.startswith("\x01ACTION "):
        words = f"({nick} {words[8:]})"
    if words.startswith("\x01DCC "):  # ignore offers of files and chats
        words = ""
    direct = target.lower() == me.lower()
    if not mask or nick.lower() == me.lower() or words.startswith("\x01") or not (direct or is_channel(target)):
        return None
    named = re.search(rf"(?<![\w-])@?{re.escape(me)}(?![\w-])", words, re.I) is not None
    text = re.sub(rf"^\s*@?{re.escape(me)}\s*[:,]\s*", "", plain(words), flags=re.I).strip()
    return Spoken(target, nick, mask, text, direct, named)


def is_channel(name: str) -> bool:
    return name.startswith(("#", "&", "+", "!"))


def written(*words: str) -> bytes:
    """Encode a line. Raises PlatformError if a server would parse it differently or as two lines."""
    *first, last = words
    if any(not word or word[0] == ":" or " " in word for word in first) or any(
        end in "".join(words) for end in "\r\n\0"
    ):
        raise PlatformError(f"IRC cannot send {' '.join(words)[:60]!r} in one line.", permanent=True)
    line = " ".join((*first, f":{last}" if not last or last[0] == ":" or " " in last else last)).encode()
    return line[: LINE_BYTES_MAX - 2] + b"\r\n"


def plain(text: str) -> str:
    """Remove control characters and colors from the text. Line breaks are kept."""
    return _UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def pieces(text: str, target: str) -> list[str]:
    """Split a text into lines that each fit into one message to `target`, between words if possible."""
    room, lines = LINE_BYTES_MAX - MASK_BYTES_MAX - len(f"PRIVMSG {target} :\r\n".encode()), list[str]()
    for line in text.split("\n"):
        rest = line
        while len(rest.encode()) > room:
            head = rest.encode()[:room].decode("utf-8", "ignore")
            at = head.rfind(" ", len(head) // 2) + 1 or len(head)
            lines.append(head[:at].rstrip())
            rest = rest[at:]
        lines.append(rest.rstrip())
    return [line for line in lines if line.strip()]
