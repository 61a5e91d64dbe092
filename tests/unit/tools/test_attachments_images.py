"""Images sent to models: identified by their bytes, intact, and small enough for every provider."""

import io
import struct
import sys
import zlib
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from shoal.files.images import image_head
from shoal.kernel.errors import InvalidInput
from shoal.tools.attachments import AREA_MAX, IMAGE_BYTES_MAX, PIXELS_MAX, fit_image, media_type_of


def drawn(kind: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object) -> bytes:
    target = io.BytesIO()
    Picture.new(mode, size, 120 if mode in ("L", "P", "1", "I;16") else None).save(target, kind, **options)
    return target.getvalue()


def noise(kind: str, side: int, mode: str = "RGB") -> bytes:
    bands = {"RGB": 3, "RGBA": 4}[mode]
    target = io.BytesIO()
    level = {"compress_level": 0} if side > 1000 else {}  # noise does not compress, and trying takes long
    Picture.frombytes(mode, (side, side), Random(1).randbytes(side * side * bands)).save(target, kind, **level)
    return target.getvalue()


def frames(kind: str) -> bytes:
    first, second = Picture.new("RGB", (20, 20), "red"), Picture.new("RGB", (20, 20), "blue")
    target = io.BytesIO()
    first.save(target, kind, save_all=True, append_images=[second])
    return target.getvalue()


def turned() -> bytes:
    exif = Picture.Exif()
    exif[0x0112] = 6
    return drawn("JPEG", exif=exif)


@pytest.mark.parametrize("content", [drawn("PNG"), drawn("JPEG"), drawn("PNG", mode="RGBA"), drawn("PNG", mode="P")])
def test_a_universally_supported_image_is_sent_unchanged(content: bytes) -> None:
    image, _ = fit_image(content)
    assert image is content


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (drawn("GIF", mode="P"), "image/jpeg"),
        (drawn("WEBP"), "image/jpeg"),
        (drawn("WEBP", mode="RGBA"), "image/png"),
        (drawn("BMP"), "image/jpeg"),
        (drawn("TIFF"), "image/jpeg"),
        (drawn("AVIF"), "image/jpeg"),
        (drawn("ICO", mode="RGBA"), "image/png"),
        (drawn("JPEG", mode="CMYK"), "image/jpeg"),
        (drawn("PNG", mode="I;16"), "image/jpeg"),
        (drawn("PNG", (300, 300))[:-20], "image/jpeg"),
        (frames("GIF"), "image/jpeg"),
        (frames("WEBP"), "image/jpeg"),
        (frames("PNG"), "image/jpeg"),
        (turned(), "image/jpeg"),
        (drawn("PNG", (9000, 20)), "image/jpeg"),
        (drawn("PNG", (20, 9000)), "image/jpeg"),
        (noise("PNG", 1500), "image/jpeg"),
        (noise("PNG", 1200, "RGBA"), "image/png"),
    ],
)
def test_other_images_become_a_png_or_jpeg_within_every_providers_limits(content: bytes, kind: str) -> None:
    image, found = fit_image(content)
    assert found == kind == media_type_of(image)
    assert len(image) <= IMAGE_BYTES_MAX
    with Picture.open(io.BytesIO(image)) as shown:
        shown.load()
        assert max(shown.size) <= PIXELS_MAX
        assert getattr(shown, "n_frames", 1) == 1


@pytest.mark.parametrize("extra", ["iCCP", "tEXt", "pHYs"])
def test_damaged_extras_of_a_png_are_dropped(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = drawn("PNG")
    chunk = struct.pack(">I", 9) + extra.encode() + b"profile\0\0" + b"\0\0\0\0"
    broken = plain[:33] + chunk + plain[33:]
    assert fit_image(broken) == (plain, "image/png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert fit_image(broken) == (plain, "image/png")


def test_an_image_is_rotated_by_its_orientation() -> None:
    with Picture.open(io.BytesIO(fit_image(turned())[0])) as shown:
        assert shown.size == (30, 40)


def bomb() -> bytes:
    """Return a PNG of a few bytes that claims to be huge."""
    head = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + head + zlib.crc32(head).to_bytes(4, "big") + b"\0\0\0\0IEND\xaeB`\x82"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"<html>Not found</html>", "not an image"),
        (b"%PDF-1.7 ...", "not an image"),
        (b"\0\0\0\x18ftypheic" + bytes(40), "models do not accept HEIC images"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 50, "damaged"),
        (b"\xff\xd8\xff\xe0", "damaged"),
        (b"GIF89a", "damaged"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "damaged"),
        (noise("JPEG", 200)[:-3000], "damaged"),
        (noise("PNG", 100)[:5000] + b"\0" * 200 + noise("PNG", 100)[5200:], "damaged"),
        (bomb(), "60000 × 60000"),
        (drawn("PNG", (12_000, AREA_MAX // 12_000 + 1), mode="1"), "pixels"),
    ],
)
def test_an_unreadable_image_is_refused_with_the_reason(content: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        fit_image(content)


def test_without_pillow_an_image_is_judged_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [drawn("PNG"), drawn("JPEG"), drawn("GIF", mode="P"), drawn("WEBP")]
    refused = {
        drawn("PNG", (2001, 5)): "2001 × 5 pixels; the `images` extra",
        noise("PNG", 1100): "can be at most 3,000,000 bytes; the `images` extra",
        drawn("PNG")[:-20]: "damaged",
        drawn("WEBP")[:-9]: "damaged",
        drawn("BMP"): "models do not accept BMP images",
        b"text": "not an image",
    }
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert [fit_image(content) for content in sent] == [(content, media_type_of(content)) for content in sent]
    for content, why in refused.items():
        with pytest.raises(InvalidInput, match=why):
            fit_image(content)


@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]), st.integers(1, 3000), st.integers(1, 200), st.booleans())
@settings(max_examples=40)
def test_header_and_pillow_agree(kind: str, width: int, height: int, lossless: bool) -> None:
    options = {"lossless": lossless} if kind == "WEBP" else {"progressive": lossless} if kind == "JPEG" else {}
    content = drawn(kind, (width, height), mode="L" if kind == "GIF" else "RGB", **options)
    head = image_head(content)
    assert head is not None
    assert (head.width, head.height, head.is_whole) == (width, height, True)
    assert head.media_type == f"image/{kind.lower()}"
    cut = image_head(content[: len(content) * 2 // 3])
    assert cut is None or not cut.is_whole


@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF1234WEBPVP8X", b"BM"]),
    st.binary(max_size=200),
)
def test_any_bytes_are_handled(before: bytes, after: bytes) -> None:
    image_head(before + after)
    with suppress(InvalidInput):
        fit_image(before + after)
