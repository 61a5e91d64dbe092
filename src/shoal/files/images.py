"""Detection of an image's format, size and completeness from its bytes, without decoding it."""

import zlib
from typing import NamedTuple

_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_PNG_START = b"\x89PNG\r\n\x1a\n"
SEGMENTS_MAX = 10_000


class ImageHead(NamedTuple):
    """An image's media type and its size in pixels. `is_whole` is False if the image is truncated."""

    media_type: str
    width: int
    height: int
    is_whole: bool


def image_head(content: bytes) -> ImageHead | None:
    """Parse the header of a PNG, JPEG, GIF or WebP image. Return None for other content and for a damaged header."""
    if content.startswith(_PNG_START):
        return _png(content)
    if content.startswith(b"\xff\xd8\xff"):
        return _jpeg(content)
    if content[:6] in (b"GIF87a", b"GIF89a") and len(content) >= 13:
        width, height = (int.from_bytes(content[at : at + 2], "little") for at in (6, 8))
        return _head("image/gif", width, height, content.rstrip(b"\0").endswith(b";"))
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _webp(content)
    return None


def without_damaged_extras(content: bytes) -> bytes:
    """Remove optional PNG chunks that have a wrong checksum, such as a color profile or text.

    Viewers ignore such chunks, but decoders reject the image because of them. Other content is returned unchanged.
    """
    if not content.startswith(_PNG_START):
        return content
    chunks, begin, at = list[bytes](), 0, len(_PNG_START)
    for _ in range(SEGMENTS_MAX):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        if end > len(content):
            break
        is_optional = content[at + 4] & 0x20
        if is_optional and zlib.crc32(content[at + 4 : end - 4]) != int.from_bytes(content[end - 4 : end], "big"):
            chunks.append(content[begin:at])
            begin = end
        at = end
    return b"".join((*chunks, content[begin:])) if chunks else content


def _head(media_type: str, width: int, height: int, is_whole: bool) -> ImageHead | None:
    return ImageHead(media_type, width, height, is_whole) if width > 0 and height > 0 else None


def _png(content: bytes) -> ImageHead | None:
    if content[12:16] != b"IHDR" or len(content) < 33:
        return None
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    return _head("image/png", width, height, b"IEND" in content[-1_024:])


def _jpeg(content: bytes) -> ImageHead | None:
    at = 2
    for _ in range(SEGMENTS_MAX):
        while content[at : at + 1] == b"\xff" and content[at + 1 : at + 2] == b"\xff":
            at += 1
        if at + 9 > len(content) or content[at] != 0xFF:
            return None
        marker = content[at + 1]
        if marker in _JPEG_SIZES:
            height, width = (int.from_bytes(content[at + step : at + step + 2], "big") for step in (5, 7))
            return _head("image/jpeg", width, height, b"\xff\xd9" in content[at:])
        at += 2 if marker in _JPEG_ALONE else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _webp(content: bytes) -> ImageHead | None:
    is_whole = len(content) >= int.from_bytes(content[4:8], "little") + 8
    match content[12:16]:
        case b"VP8X" if len(content) >= 30:
            width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L" if len(content) >= 25:
            bits = int.from_bytes(content[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if len(content) >= 30:
            width, height = (int.from_bytes(content[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        case _:
            return None
    return _head("image/webp", width, height, is_whole)
