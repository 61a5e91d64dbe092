"""Detect media types, convert images for models, and store copies of files that no tool can change."""

import hashlib
import io
import os
import secrets
import struct
from pathlib import Path

from shoal.files.images import ImageHead, image_head, without_damaged_extras
from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.tools.output import is_binary

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"\0\0\1\0", "image/x-icon"),
    (b"BM", "image/bmp"),
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
_FTYP = {
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"hevc": "image/heic",
    b"mif1": "image/heic",
    b"msf1": "image/heic",
}
_SHORT = (b"MZ", b"BM")
"""Signatures that ordinary text can also start with."""
EXECUTABLE = "application/x-executable"


def media_type_of(content: bytes) -> str:
    """Detect the media type from the content. Returns `text/plain` for all text and `application/octet-stream` if
    unknown.
    """
    if content[:4] == b"RIFF":
        return _RIFF.get(content[8:12], "application/octet-stream")
    if content[4:8] == b"ftyp":
        return _FTYP.get(content[8:12], "video/mp4")
    for magic, media_type in _MAGIC:
        if content.startswith(magic) and (magic not in _SHORT or is_binary(content)):
            return media_type
    return "application/octet-stream" if is_binary(content) else "text/plain"


PIXELS_MAX = 1568
"""Maximum side length of images sent to models. Providers shrink larger images themselves but charge for them."""
IMAGE_BYTES_MAX = 3_000_000
"""Maximum size of an image that every provider accepts. The providers' limits apply to its base64 form, which is 4 MB.

Anthropic and Bedrock accept 5 MB of base64 and 8,000 pixels per side, or 2,000 pixels if a request has more than 20
images. Groq accepts 4 MB, Mistral 10 MB, and OpenAI, xAI and Gemini 20 MB per request. Gemini does not accept GIF, and
xAI and llama.cpp accept neither GIF nor WebP.
"""
AREA_MAX = 60_000_000
"""Maximum number of pixels in an image. Larger images are not opened."""
HALVINGS_MAX = 5
_OPENED = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "AVIF")
_SENT = {"PNG": "image/png", "JPEG": "image/jpeg"}
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_ORIENTATION = 0x0112


def is_image(media_type: str) -> bool:
    return media_type.startswith("image/")


def fit_image(content: bytes, bytes_max: int = IMAGE_BYTES_MAX) -> tuple[bytes, str]:
    """Convert an image to a format that every provider accepts. Returns the image and its media type.

    A suitable image is returned unchanged. Other images become PNG or JPEG and are scaled down if necessary. Only
    the first frame of an animation is kept.

    Without Pillow, which is optional, only the header is checked: the image is returned unchanged or rejected.
    Blocks. Raises InvalidInput if the image is damaged, too large, or in an unsupported format.
    """
    content = without_damaged_extras(content)
    bytes_max, head = min(bytes_max, IMAGE_BYTES_MAX), image_head(content)
    if head is not None and head.width * head.height > AREA_MAX:
        raise InvalidInput(f"it has too many pixels ({head.width} × {head.height})")
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        return _by_head(content, head, bytes_max)
    try:
        with Image.open(io.BytesIO(content), formats=_OPENED) as image:
            width, height = image.size
            if width * height > AREA_MAX:
                raise InvalidInput(f"it has too many pixels ({width} × {height})")
            is_sent = (
                image.format in _SENT
                and head is not None
                and head.is_whole
                and getattr(image, "n_frames", 1) == 1
                and image.mode in _MODES
            )
            if is_sent and len(content) <= bytes_max and max(width, height) <= PIXELS_MAX:
                image.load()
                if image.getexif().get(_ORIENTATION, 1) == 1:
                    return content, _SENT[image.format or ""]
            image.draft("RGB", (PIXELS_MAX, PIXELS_MAX))
            picture = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
            picture = ImageOps.exif_transpose(picture)
    except UnidentifiedImageError as error:
        raise InvalidInput(_why_not(content)) from error
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        ZeroDivisionError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
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
        side = max(1, side // 2)  # a long color profile can keep even a tiny image above the limit
    raise InvalidInput(f"an image can be at most {bytes_max:,} bytes")


def _by_head(content: bytes, head: ImageHead | None, bytes_max: int) -> tuple[bytes, str]:
    if head is None:
        raise InvalidInput(_why_not(content))
    if not head.is_whole:
        raise InvalidInput("it is damaged")
    if len(content) > bytes_max:
        raise InvalidInput(f"an image can be at most {bytes_max:,} bytes; the `images` extra can shrink larger ones")
    if max(head.width, head.height) > SIDE_MAX:
        raise InvalidInput(f"it has {head.width} × {head.height} pixels; the `images` extra can shrink it")
    return content, head.media_type


SIDE_MAX = 2000
"""Maximum side length of an image, in pixels, if Pillow is not installed."""


def _why_not(content: bytes) -> str:
    kind = media_type_of(content)
    if kind in _SENT.values() or kind in ("image/gif", "image/webp"):
        return "it is damaged"
    if is_image(kind):
        name = kind.removeprefix("image/").removeprefix("x-").upper()
        return f"models do not accept {name} images; send the image as JPEG or PNG"
    return "it is not an image"


FOLDER = "kept"
_UNSAFE = lazy_re.compile(r"[^\w.() -]+")


def keep_copy(home: Home, thread: ThreadId, name: str, content: bytes) -> Path:
    """Store a durable copy of `content` below the thread's directory and return its path.

    The path contains the content's digest and a safe form of `name`, so the same content and name are stored only
    once. Blocks. Raises OSError.
    """
    folder = home.thread(thread) / FOLDER / hashlib.sha256(content).hexdigest()[:32]
    path = folder / (_UNSAFE.sub("_", name).strip(". ")[:120] or "file")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{secrets.token_hex(6)}"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path
