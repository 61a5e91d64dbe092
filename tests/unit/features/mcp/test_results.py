"""Results from MCP servers: read block by block, bounded, and described in words if Shoal cannot show them."""

import base64
import io
from pathlib import Path

import pytest
from PIL import Image as Picture

from shoal.features.mcp import results
from shoal.features.mcp.results import output_of
from shoal.kernel.ports import ToolOutput

Block = dict[str, object]


def picture(side: int = 4, kind: str = "PNG") -> bytes:
    target = io.BytesIO()
    Picture.new("RGB", (side, side), "teal").save(target, kind)
    return target.getvalue()


PNG = base64.b64encode(picture()).decode()


def output(*blocks: object, **more: object) -> ToolOutput:
    return output_of("odd", {"content": list(blocks), **more}, lambda name, _: Path(name))


def told(*blocks: object, **more: object) -> str:
    return output(*blocks, **more).text.partition(f"{results.WARNING}\n\n")[2].rpartition("\n</untrusted>")[0]


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def blob(content: bytes, kind: str = "") -> Block:
    return {
        "type": "resource",
        "resource": {"uri": "memo://c", "blob": base64.b64encode(content).decode(), "mimeType": kind},
    }


def test_unsupported_content_is_named() -> None:
    link = {"type": "resource_link", "uri": "memo://a", "name": "a", "description": "The first."}
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    inside = {"type": "resource", "resource": {"uri": "memo://b", "text": "inside"}}
    assert told(text("one"), link, audio, inside).splitlines() == [
        "one", "[resource memo://a: a] The first.", "[audio, audio/wav, 3 bytes, not played]",
        "[resource memo://b]", "inside",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "text", "text": "a", "annotations": {"priority": 7, "audience": "x"}}, "a"),
        ({"type": "chart", "points": [1, 2]}, '{"type": "chart", "points": [1, 2]}'),
        ({"type": "markdown", "text": "# A"}, "# A"),
        ({"text": "no type"}, "no type"),
        ({"type": "text"}, '{"type": "text"}'),
        ({"type": "text", "text": {"a": 1}}, '{"type": "text", "text": {"a": 1}}'),
        ("a bare text", "a bare text"),
        (7, "7"),
        (None, "null"),
        ({"type": "resource", "resource": None}, '{"type": "resource", "resource": null}'),
        ({"type": "resource", "resource": {"uri": "a:b"}}, "[resource a:b] (no readable content)"),
        ({"type": "text", "text": "nul\0byte"}, "nul\ufffdbyte"),
        (blob(b"a,b\n1,2\n", "text/csv"), "[resource memo://c]\na,b\n1,2\n"),
        (blob("höhle".encode("utf-16"), "text/plain"), "[resource memo://c]\nhöhle"),
        (blob("Größe".encode("cp1252"), ""), "[resource memo://c]\nGröße"),
        (blob(b'{"a": 1}', "application/json"), '[resource memo://c]\n{"a": 1}'),
        (blob("naïve".encode()), "[resource memo://c]\nnaïve"),
        (
            blob(bytes(range(256)), "application/x-thing"),
            "[resource memo://c] (binary, application/x-thing, 256 bytes)",
        ),
        (blob(picture(), "application/octet-stream"), "[resource memo://c]\n[image 1]"),
        ({"type": "image"}, "[an image that Shoal cannot show: its data is too large or not base64]"),
        (
            {"type": "image", "data": "no base64!"},
            ("[an image that Shoal cannot show: its data is too large or not base64]"),
        ),
        ({"type": "image", "data": "AAAA"}, "[an image that Shoal cannot show: it is not an image]"),
    ],
)
def test_every_block_is_read_as_far_as_possible(block: object, expected: str) -> None:
    assert told(text("before"), block, text("after")) == f"before\n{expected}\nafter"


@pytest.mark.parametrize(
    "data",
    [
        PNG,
        "\n".join(PNG[at : at + 20] for at in range(0, len(PNG), 20)),
        PNG.rstrip("="),
        PNG.replace("+", "-").replace("/", "_"),
        f"data:image/png;base64,{PNG}",
        f"  {PNG}\r\n",
    ],
)
def test_base64_of_any_spelling_is_an_image(data: str) -> None:
    (image,) = output({"type": "image", "data": data, "mimeType": "image/jpeg"}).images
    assert image.media_type == "image/png"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "image", "url": f"data:image/png;base64,{PNG}"},
    ],
)
def test_images_in_the_form_of_other_protocols_are_read(block: Block) -> None:
    assert len(output(block).images) == 1


def test_a_large_picture_is_shrunk_and_a_truncated_one_reported() -> None:
    large, cut = picture(1900, "BMP"), picture(600, "JPEG")[:-800]
    kept: list[bytes] = []

    def keep(name: str, content: bytes) -> Path:
        kept.append(content)
        return Path(name)

    blocks = [{"type": "image", "data": base64.b64encode(one).decode()} for one in (large, cut)]
    found = output_of("odd", {"content": blocks}, keep)
    assert [image.media_type for image in found.images] == ["image/jpeg"]
    assert max(Picture.open(io.BytesIO(kept[0])).size) == 1568
    assert "Shoal cannot show: it is damaged" in found.text


def test_structured_content_is_added_where_the_text_lacks_it() -> None:
    assert told(structuredContent={"a": 1}) == '{"a": 1}'
    assert told(text('{"a": [1, "b"]}'), structuredContent={"a": [1, "b"]}) == '{"a": [1, "b"]}'
    assert told(text("42"), structuredContent={"result": 42.0}) == "42"
    assert told(text("done"), structuredContent={"rows": ["x"]}) == 'done\n{"rows": ["x"]}'
    assert told(structuredContent=[1, 2]) == "[1, 2]"
    assert told() == "[no content]"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({}, "[no content]"),
        ({"content": None}, "[no content]"),
        ({"content": "text"}, "text"),
        ({"content": {"type": "text", "text": "one"}}, "one"),
        ({"toolResult": {"a": 1}}, '{"toolResult": {"a": 1}}'),
        ({"content": [], "structuredContent": None}, "[no content]"),
    ],
)
def test_a_result_without_a_block_list_is_read(result: Block, expected: str) -> None:
    assert expected in output_of("odd", result, lambda name, _: Path(name)).text


@pytest.mark.parametrize(
    ("flag", "is_error"), [(True, True), ("true", True), ("false", False), (None, False), (0, False)]
)
def test_the_error_flag_may_be_a_string(flag: object, is_error: bool) -> None:
    assert output(text("x"), isError=flag).is_error is is_error


def test_long_text_is_cut_and_says_so() -> None:
    found = output(text("x" * (results.TEXT_CHARS_MAX + 1))).text
    assert "The result is longer" in found
    assert found.count("x") <= results.TEXT_CHARS_MAX + 10


def test_parts_and_pictures_are_bounded() -> None:
    found = output(*[{"type": "image", "data": PNG, "mimeType": "image/png"}] * 9)
    assert len(found.images) == results.IMAGES_MAX
    assert "not shown" in found.text
    assert "[parts omitted: 3]" in told(*[text("x")] * (results.BLOCKS_MAX + 3))
