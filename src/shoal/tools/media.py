"""What a file is, by its first bytes: names and headers say what a sender wants to be believed."""

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
        return "video/mp4"
    for magic, media_type in _MAGIC:
        if content.startswith(magic) and (magic != b"MZ" or is_binary(content)):
            return media_type
    return "application/octet-stream" if is_binary(content) else "text/plain"
