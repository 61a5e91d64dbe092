"""Makes images fit for models, within a size in bytes and pixels; by Pillow, which the extra `images` brings."""

import io
from typing import NamedTuple

from shoal.domain.errors import InvalidInput

PIXELS_MAX = 1568
"""Longest side that models look at; the providers make larger ones smaller themselves, and charge for it."""
AREA_MAX = 60_000_000
"""Largest image that is opened at all, in pixels."""
HALVINGS_MAX = 5


class FittedImage(NamedTuple):
    """An image as it is shown."""

    content: bytes
    media_type: str


def fit_image(content: bytes, media_type: str, bytes_max: int, pixels_max: int = PIXELS_MAX) -> FittedImage:
    """The image itself where it fits, else a smaller one (of an animation its first picture).

    Blocking. Raises InvalidInput for one that is damaged, vast, or too large while Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        if len(content) <= bytes_max:
            return FittedImage(content, media_type)
        raise InvalidInput(
            f"an image may have {bytes_max:,} bytes; the extra `images` lets larger ones be made smaller"
        ) from None
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
            if width * height > AREA_MAX:
                raise InvalidInput(f"it has {width} × {height} pixels")
            if len(content) <= bytes_max and max(width, height) <= pixels_max:
                image.load()
                return FittedImage(content, media_type)
            image.draft("RGB", (pixels_max, pixels_max))
            picture = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise InvalidInput("it is damaged") from error
    side = min(pixels_max, max(picture.size))
    for _ in range(HALVINGS_MAX):
        picture.thumbnail((side, side))
        target = io.BytesIO()
        if picture.mode == "RGBA":
            picture.save(target, "PNG", optimize=True)
        else:
            picture.save(target, "JPEG", quality=85)
        if target.tell() <= bytes_max:
            return FittedImage(target.getvalue(), "image/png" if picture.mode == "RGBA" else "image/jpeg")
        side //= 2
    raise InvalidInput(f"an image may have {bytes_max:,} bytes")
