"""Discord's markup as people see it: the text without its marks. Source: Discord's guide to text formatting."""

import re

_FENCE = re.compile(r"(`{3,})(?:[\w+#.-]*\n)?(.*?)\n?\1", re.DOTALL)
_CODE = re.compile(r"(`{1,2}) ?(.+?) ?\1")
_LINK = re.compile(r"\[((?:\\.|[^\]\\])+)\]\((https?://[^)\s]+)\)")
_MARK = re.compile(r"\\([^0-9A-Za-z\s])|\*{1,3}|~~|\|\||(?m:^(?:#{1,3} |> ))|<(https?://[^>\s]+)>")


def shown_text(source: str) -> str:
    """The text of a message as people see it."""
    found: list[str] = []
    at = 0
    for fence in _FENCE.finditer(source):
        found += [_spans(source[at : fence.start()]), fence[2]]
        at = fence.end()
    return "".join((*found, _spans(source[at:])))


def _spans(text: str) -> str:
    found: list[str] = []
    at = 0
    for code in _CODE.finditer(text):
        if text[: code.start()].endswith("\\"):
            continue
        found += [_marks(text[at : code.start()]), code[2]]
        at = code.end()
    return "".join((*found, _marks(text[at:])))


def _marks(text: str) -> str:
    return _MARK.sub(lambda found: found[1] or found[2] or "", _LINK.sub(lambda found: found[1], text))
