"""What a server returns is bounded, and said in words where it cannot be shown."""

import base64
from pathlib import Path

import pytest

from shoal.tools.mcp import connection
from shoal.tools.mcp.connection import output_of

types = pytest.importorskip("mcp", reason="the extra mcp is not installed").types
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 50).decode()


def told(*blocks: object, **more: object) -> str:
    return output_of("odd", types.CallToolResult(content=list(blocks), **more), lambda name, _: Path(name)).text


def text(words: str) -> object:
    return types.TextContent(text=words)


def test_what_cannot_be_shown_is_named() -> None:
    link = types.ResourceLink(uri="memo://a", name="a")
    audio = types.AudioContent(data="", mime_type="audio/wav")
    inside = types.EmbeddedResource(resource=types.TextResourceContents(uri="memo://b", text="inside"))
    found = told(text("one"), link, audio, inside)
    assert "one\n[resource memo://a: a]\n[audio, audio/wav, not played]\n[resource memo://b]\ninside" in found


def test_structure_alone_is_shown_as_json() -> None:
    assert '{"a":1}' in told(structured_content={"a": 1})
    assert "[no content]" in told()


def test_long_text_is_cut_and_says_so() -> None:
    found = told(text("x" * (connection.TEXT_CHARS_MAX + 1)))
    assert "The result goes on" in found
    assert found.count("x") <= connection.TEXT_CHARS_MAX + 10


def test_no_more_parts_and_pictures_than_the_bounds() -> None:
    picture = types.ImageContent(data=PNG, mime_type="image/png")
    output = output_of("odd", types.CallToolResult(content=[picture] * 9), lambda name, _: Path(name))
    assert len(output.images) == connection.IMAGES_MAX
    assert "not shown" in output.text
    assert "more parts were left out" in told(*[text("x")] * (connection.BLOCKS_MAX + 3))


@pytest.mark.parametrize("data", ["", "no base64!", base64.b64encode(b"<svg onload=x>").decode(), "A" * 8_000_000])
def test_what_is_no_picture_is_not_handed_on_as_one(data: str, tmp_path: Path) -> None:
    picture = types.ImageContent(data=data, mime_type="image/png")
    output = output_of("odd", types.CallToolResult(content=[picture]), lambda name, _: tmp_path / name)
    assert output.images == ()
    assert "cannot be shown" in output.text
