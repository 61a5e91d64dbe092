"""Makes what a tool returns fit for a model: text from bytes, control characters made visible, length bounded."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.tools.jail import FILE_BYTES_MAX, Jail, Root

BINARY_SAMPLE_BYTES = 8192
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class OutputBounds(msgspec.Struct, frozen=True):
    """How much of a result the model sees. `head_share` of an excerpt is its beginning, the rest its end."""

    chars_max: int = 16_000
    head_share: float = 0.6


class BoundedOutput(msgspec.Struct, frozen=True):
    """A result as the model sees it; `artifact` is the path of the whole when `text` is an excerpt."""

    text: str
    artifact: str = ""


def text_of(data: bytes) -> str:
    """Text from bytes: UTF-8 with marks for what is not, or one line that names binary content."""
    if is_binary(data):
        return f"[{len(data):,} bytes of binary data, not shown]"
    return data.decode("utf-8", errors="replace")


def is_binary(data: bytes) -> bool:
    """Whether bytes are no text: a NUL, or more than a tenth that is not UTF-8, in their first 8 KiB."""
    sample = data[:BINARY_SAMPLE_BYTES]
    if b"\0" in sample:
        return True
    broken = sample.decode("utf-8", errors="replace").count("\ufffd")
    return broken * 10 > len(sample)


def visible(text: str) -> str:
    """Text with control, direction and invisible characters written as `\\xHH` or `\\uHHHH`; `\\r\\n` is a line end."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(_escaped, text.replace("\r\n", "\n"))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def bound_output(
    text: str, scratch: Path, call_id: str, bounds: OutputBounds, inside: Callable[[Path], str]
) -> BoundedOutput:
    """The text itself where it is short enough; else an excerpt, with the whole in a file under `scratch`.

    The model is told the file's path by `inside`. Content beyond FILE_BYTES_MAX is not kept, which the notice says.
    Raises ToolError when the file cannot be written.
    """
    if len(text) <= bounds.chars_max:
        return BoundedOutput(visible(text))
    name = f"output-{_UNSAFE_IN_NAME.sub('_', call_id)[:64]}.txt"
    content = text.encode("utf-8", errors="replace")
    scratch.mkdir(parents=True, exist_ok=True)
    jail = Jail((Root(scratch, str(scratch), writable=True),))
    jail.write(jail.resolve(name), content[:FILE_BYTES_MAX])
    shown = inside(scratch / name)
    is_cut = len(content) > FILE_BYTES_MAX
    kept = f"the first {FILE_BYTES_MAX:,} bytes of it are" if is_cut else "all of it is"
    lines = text.count("\n") + (not text.endswith("\n"))
    notice = f"[The output has {len(text):,} characters in {lines:,} lines; {kept} in {shown}. This is an excerpt.]"
    return BoundedOutput(f"{_excerpt(text, bounds)}\n{notice}", shown)


def _excerpt(text: str, bounds: OutputBounds) -> str:
    """The beginning and the end, cut at line ends where there are any, and between them how much is missing."""
    head_chars = int(bounds.chars_max * bounds.head_share)
    tail_chars = bounds.chars_max - head_chars
    head, tail = text[:head_chars], text[-tail_chars:]
    if "\n" in head[head_chars // 2 :]:
        head = head[: head.rindex("\n")]
    if "\n" in tail[: tail_chars // 2]:
        tail = tail[tail.index("\n") + 1 :]
    tail = tail.removesuffix("\n")
    missing = len(text) - len(head) - len(tail)
    return f"{visible(head)}\n[… {missing:,} characters left out …]\n{visible(tail)}"
