"""File types are detected from the bytes. The type that the sender states may refine them but never contradict them."""

import pytest

from shoal.threads.attachments import specific_media_type

ZIP, TEXT, BYTES, PNG = "application/zip", "text/plain", "application/octet-stream", "image/png"
SHEET = "application/vnd.oasis.opendocument.spreadsheet"


@pytest.mark.parametrize(
    ("claimed", "found", "told"),
    [
        (SHEET, ZIP, SHEET),
        ("application/java-archive", ZIP, ZIP),
        (SHEET, PNG, PNG),
        ("text/markdown", TEXT, "text/markdown"),
        ("application/json", TEXT, "application/json"),
        ("application/pdf", TEXT, TEXT),
        ("image/png", TEXT, TEXT),
        ("audio/ogg", BYTES, "audio/ogg"),
        ("image/png", BYTES, BYTES),
        ("text/html", BYTES, BYTES),
    ],
)
def test_a_claimed_type_is_accepted_within_the_detected_family(claimed: str, found: str, told: str) -> None:
    assert specific_media_type(claimed, found) == told
