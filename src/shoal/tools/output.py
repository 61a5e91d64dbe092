"""Prepare a tool's result for a model: decode text, make control characters visible, and limit the length."""

import re
from collections.abc import Callable

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.phrases import counted
from shoal.text.encodings import find_encoding, read_text

ARTIFACT_BYTES_MAX = 26_214_400
HEAD_SHARE = 0.6
"""Share of an excerpt that comes from the beginning of the text. The rest comes from the end."""
_CONTROL = lazy_re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb"
    r"\U000e0000-\U000e01ef]"  # tags and variation selectors, which can hide whole sentences
)


class OutputBounds(msgspec.Struct, frozen=True):
    """Limits, in characters, on the part of a result that the model sees.

    stored_chars_min: a longer result is stored, and the model receives an excerpt.
    excerpt_chars_max: maximum length of the excerpt.
    piece_chars_max: maximum length of a piece of a stored result.
    """

    stored_chars_min: int = 2_000
    excerpt_chars_max: int = 2_000
    piece_chars_max: int = 16_000


class BoundedOutput(msgspec.Struct, frozen=True):
    """A result as the model sees it. If the result was stored, `artifact` is its digest and `size_bytes` the
    number of stored bytes.
    """

    text: str
    artifact: str = ""
    size_bytes: int = 0


def text_of(data: bytes) -> str:
    text = read_text(data)
    return f"[{len(data):,} bytes of binary data, not shown]" if text is None else text


def is_binary(data: bytes) -> bool:
    return find_encoding(data) is None


def visible(text: str) -> str:
    r"""Escape control, direction and invisible characters as `\xHH`, `\uHHHH` or `\UHHHHHHHH`. CRLF becomes LF."""
    if _CONTROL.search(text) is None:
        return text

    def escaped(match: re.Match[str]) -> str:
        code = ord(match.group())
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"

    return _CONTROL.sub(escaped, text.replace("\r\n", "\n"))


def bound_output(
    text: str, bounds: OutputBounds, keep: Callable[[bytes], str], raw: str = "", folder: str = ""
) -> BoundedOutput:
    """Return a short text unchanged. Store a long text with `keep`, and return an excerpt and a notice.

    If `raw` is not empty, it is stored instead of `text`, which is the final state of `raw` on a terminal. `keep`
    returns the digest and may raise OSError. `folder` is the path where commands find stored texts by digest. At most
    ARTIFACT_BYTES_MAX bytes are stored. The notice says if the stored text is incomplete.
    """
    if len(text) <= bounds.stored_chars_min and not raw:
        return BoundedOutput(visible(text))
    content = (raw or text).encode("utf-8", errors="replace")
    stored = content[:ARTIFACT_BYTES_MAX]
    digest = keep(stored)
    lines = text.count("\n") + (not text.endswith("\n"))
    size = f"{counted(len(text), 'character')} in {counted(lines, 'line')}"
    if raw and len(text) <= bounds.excerpt_chars_max:
        note = f"[This is the final screen. The complete output is stored as artifact {digest}.]"
        return BoundedOutput(f"{visible(text)}\n{note}", digest, len(stored))
    if len(text) <= bounds.excerpt_chars_max:
        return BoundedOutput(f"{visible(text)}\n[Stored as artifact {digest}: {size}.]", digest, len(stored))
    stored_part = (
        f"The first {len(stored):,} bytes of the output are"
        if len(stored) < len(content)
        else ("The complete output is")
    )
    where = f"see read_artifact, or {folder}/{digest} in commands" if folder else "see read_artifact"
    notice = f"[This is an excerpt of {size}. {stored_part} stored as artifact {digest}: {where}.]"
    return BoundedOutput(f"{excerpt(text, bounds.excerpt_chars_max)}\n{notice}", digest, len(stored))


def bound_piece(text: str, bounds: OutputBounds) -> BoundedOutput:
    if len(text) <= bounds.piece_chars_max:
        return BoundedOutput(visible(text))
    notice = "[The middle of the output was omitted. Request a smaller part.]"
    return BoundedOutput(f"{excerpt(text, bounds.piece_chars_max)}\n{notice}")


def excerpt(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return visible(text)
    head_chars = int(chars_max * HEAD_SHARE)
    tail_chars = chars_max - head_chars
    head, tail = text[:head_chars], text[-tail_chars:]
    if "\n" in head[head_chars // 2 :]:
        head = head[: head.rindex("\n")]
    if "\n" in tail[: tail_chars // 2]:
        tail = tail[tail.index("\n") + 1 :]
    tail = tail.removesuffix("\n")
    missing = len(text) - len(head) - len(tail)
    return f"{visible(head)}\n[… {missing:,} characters omitted …]\n{visible(tail)}"
