"""Files that people and models are given: their type by content, images made to fit, copies that no tool can change."""

import hashlib
import io
import os
import re
import secrets
from pathlib import Path

from shoal.domain.errors import InvalidInput
from shoal.domain.home import Home
from shoal.domain.ids import ThreadId
from shoal.tools.output import is_binary

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-executable"),
    (b"\xcf\xfa\xed\xfe", "application/x-executable"),
    (b"\xca\xfe\xba\xbe", "application/x-executable"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
EXECUTABLE = "application/x-executable"


def media_type_of(content: bytes) -> str:
    """The media type by content: `text/plain` for any text, `application/octet-stream` for what is not known."""
    if content[:4] == b"RIFF":
        return _RIFF.get(content[8:12], "application/octet-stream")
    if content[4:8] == b"ftyp":
        return "image/avif" if content[8:12] == b"avif" else "video/mp4"
    for magic, media_type in _MAGIC:
        if content.startswith(magic) and (magic != b"MZ" or is_binary(content)):
            return media_type
    return "application/octet-stream" if is_binary(content) else "text/plain"


PIXELS_MAX = 1568
"""Longest side that models look at; the providers make larger ones smaller themselves, and charge for it."""
AREA_MAX = 60_000_000
"""Largest image that is opened at all, in pixels."""
HALVINGS_MAX = 5


def fit_image(content: bytes, media_type: str, bytes_max: int) -> tuple[bytes, str]:
    """The image itself where it fits, else a smaller one (of an animation its first picture); and its media type.

    Blocking. Raises InvalidInput for one that is damaged, vast, or too large while Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        if len(content) <= bytes_max:
            return content, media_type
        raise InvalidInput(
            f"an image may have {bytes_max:,} bytes; the extra `images` lets larger ones be made smaller"
        ) from None
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > AREA_MAX:
                raise InvalidInput(f"it has {width} × {height} pixels")
            if len(content) <= bytes_max and max(width, height) <= PIXELS_MAX:
                image.load()
                return content, media_type
            image.draft("RGB", (PIXELS_MAX, PIXELS_MAX))
            picture = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise InvalidInput("it is damaged") from error
    side = min(PIXELS_MAX, max(picture.size))
    for _ in range(HALVINGS_MAX):
        picture.thumbnail((side, side))
        target = io.BytesIO()
        if picture.mode == "RGBA":
            picture.save(target, "PNG", optimize=True)
        else:
            picture.save(target, "JPEG", quality=85)
        if target.tell() <= bytes_max:
            return target.getvalue(), "image/png" if picture.mode == "RGBA" else "image/jpeg"
        side = max(1, side // 2)  # a tiny picture may carry a long colour profile
    raise InvalidInput(f"an image may have {bytes_max:,} bytes")


FOLDER = "kept"
_UNSAFE = re.compile(r"[^\w.() -]+")


def keep_copy(home: Home, thread: ThreadId, name: str, content: bytes) -> Path:
    """Store `content` below the thread's directory, by digest, under a safe form of `name`; returns the path.

    The same content under the same name is stored once. Blocks; raises OSError.
    """
    folder = home.thread(thread) / FOLDER / hashlib.sha256(content).hexdigest()[:32]
    path = folder / (_UNSAFE.sub("_", name).strip(". ")[:120] or "file")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{secrets.token_hex(6)}"
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return path
