"""Show made-up links as code in tainted turns, so that nobody can click them.

A made-up URL can leak data in its query, path or host name, because untrusted content may have asked the model to build
it. A URL that occurs verbatim in people's messages or in read content leaks nothing. The model's own output does not
count as read content. Neither do the arguments of its calls, the output of commands, or files read after a command ran,
because the command may have written them.

`with_known_links` changes a complete answer. `GrowingLinks` changes an answer while it is streamed. It holds back
unfinished URLs, links and blocks, so the stream never shows text that the complete answer omits.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from shoal.kernel import lazy_re
from shoal.kernel.markup import Node
from shoal.kernel.messages import AssistantMessage, ModelMessage, ToolMessage, UserMessage
from shoal.kernel.traits import TraitsByName
from shoal.kernel.transcript import SUMMARY_HEAD
from shoal.markdown.parse import block_starts, parse, plain_text
from shoal.markdown.pieces import MARKDOWN
from shoal.markdown.render import render_tree

ADDRESSES_MAX = 200
"""Maximum number of URLs that are checked per answer. All others are rendered as code."""
ENDING = ".,;:!?'\"*_~)]}>"
_WORDS = lazy_re.compile(r"[^\s<>()\[\]{}|\"`]+")
_ADDRESS = lazy_re.compile(r"[^\s<>`]+")
_SCHEME = lazy_re.compile(
    r"[a-z][a-z0-9+.\-]{0,31}:(?://|(?<=https:)|(?<=http:)|(?<=mailto:)|(?<=tel:)|(?<=sms:)|(?<=magnet:))",
    re.IGNORECASE,
)
_LABEL = lazy_re.compile(r"[\w\-]{1,63}")
_NETWORK_PATH = lazy_re.compile(r"(?:^|=)[/\\]{2}[^/\\]")
_ESCAPE = lazy_re.compile(r"\\([!-/:-@\[-`{-~])")
_TAG = lazy_re.compile("<[A-Za-z]")
_FENCE = lazy_re.compile(r" {0,3}(?:```|~~~)[^`\n]*\n")
_MARKUP = frozenset("[]<>&\\|`*_~")
"""Characters that can hide, split or end a URL."""
PARSED_AGAIN_CHARS = 2_000
"""Length in characters above which an open block is parsed again only after it has grown by a quarter."""
_INLINE = frozenset({"paragraph", "heading", "cell"})

Knows = Callable[[str], bool]


def is_address(word: str) -> bool:
    """Return True if a chat may turn this word into a link.

    Such a word has a scheme or `www.`, or it is an e-mail address, a host followed by a path or port, or a host of
    three or more labels.
    """
    if _SCHEME.search(word) or _NETWORK_PATH.search(word) or word.lower().startswith("www."):
        return True
    host = re.split(r"[/?#:\\]", word.rpartition("@")[2], maxsplit=1)[0].rstrip(".")
    labels = re.split("[.\u3002\uff0e\uff61]", host)
    if len(labels) < 2 or not all(map(_LABEL.fullmatch, labels)):
        return False
    is_longer = len(word) > len(host) + 1 or len(labels) > 2
    is_name = len(labels[-1]) > 1 and (labels[-1].isalpha() or labels[-1].lower().startswith("xn--"))
    is_number = len(labels) == 4 and host.replace(".", "").isdigit() and len(word) > len(host) + 1
    return is_longer and (is_name or is_number)


def known_from(messages: Sequence[ModelMessage], traits: TraitsByName) -> Knows:
    """Return a predicate for URLs that occur verbatim in people's messages or in read content."""
    spoken = [
        message.text
        for message in messages
        if isinstance(message, UserMessage) and not message.text.startswith(SUMMARY_HEAD)
    ]
    texts: list[tuple[bool, str]] = []
    ran = False
    for message in messages:
        match message:
            case AssistantMessage(text=text, tool_calls=calls):
                texts += [(False, text), *((False, call.arguments) for call in calls)]
                ran = ran or any(traits.of(call.name).takes_commands for call in calls)
            case ToolMessage(name=name, text=text):
                is_composed = traits.of(name).shows_output or (ran and traits.of(name).shows_file)
                texts.append((not is_composed, text))
            case UserMessage():
                pass

    def knows(address: str) -> bool:
        body = _body(address)
        if not body:
            return False
        if any(_occurs_in(body, text) for text in spoken):
            return True
        return next((is_read for is_read, text in texts if _occurs_in(body, text)), False)

    return knows


def with_known_links(markdown: str, knows: Knows) -> str:
    """Show unknown URLs as code and HTML tags as text. Blocks without either stay unchanged."""
    is_safe = _remembered(knows)
    written = "".join(_block_with_known_links(block, is_safe) for block in _blocks(markdown))
    return _block_with_known_links(written, is_safe)  # A link's URL may be defined in another block.


class GrowingLinks:
    """Applies `with_known_links` to an answer that is being streamed.

    Holds back each word until it is complete. Holds back a block from its first unknown URL or tag until the block
    ends. If the text already shown does not match the finished block, shows nothing more until the answer is
    complete.
    """

    def __init__(self, knows: Knows) -> None:
        self._is_safe = _remembered(knows)
        self._open = ""
        self._shown = self._ended = self._parsed = 0
        self._is_over = False

    def take(self, text: str) -> str:
        is_held, before = self._shown < self._ended, len(self._open)
        self._open += text
        last = max(text.rfind(" "), text.rfind("\n"))
        end = self._ended = before + last + 1 if last >= 0 else self._ended
        if self._is_over or end == self._shown:
            return ""
        if not is_held and self._stays(self._open[self._shown : end]):
            return self._show(end)
        if self._parsed > PARSED_AGAIN_CHARS and len(self._open) < self._parsed * 5 // 4:
            return ""
        self._parsed = len(self._open)
        return self._show_blocks() + self._show_open()

    def _stays(self, words: str) -> bool:
        is_code = bool(_FENCE.match(self._open, 0, self._shown)) and "```" not in words and "~~~" not in words
        return is_code or all(map(_is_plain, words.split()))

    def _show(self, end: int) -> str:
        shown = self._open[self._shown : end]
        self._shown = max(self._shown, end)
        return shown

    def _show_blocks(self) -> str:
        *ended, last = _blocks(self._open)
        written = "".join(_block_with_known_links(block, self._is_safe) for block in ended)
        done = len(self._open) - len(last)
        if not written.startswith(self._open[: min(self._shown, done)]):
            self._is_over = True
            return ""
        shown = written[self._shown :] if self._shown < done else ""
        self._open, self._parsed = last, len(last)
        self._shown, self._ended = max(0, self._shown - done), max(0, self._ended - done)
        return shown

    def _show_open(self) -> str:
        end = self._ended
        if not _FENCE.match(self._open[:end]):
            end = _links_end(self._open, end)
            if _TAG.search(self._open, 0, end) or _unknown(self._open[:end], self._is_safe):
                return ""
        stays = self._open[:end]
        return self._show(end) if _block_with_known_links(stays, self._is_safe) == stays else ""


def _links_end(text: str, end: int) -> int:
    opened = text.rfind("[", 0, end)
    closed = text.find("]", opened, end)
    is_open = closed < 0 or (text.startswith("(", closed + 1) and text.find(")", closed, end) < 0)
    return opened if opened >= 0 and is_open else end


def _is_plain(word: str) -> bool:
    bare = word.strip("*_~()\"'.,;:!?")
    return _MARKUP.isdisjoint(bare) and not is_address(bare)


def _blocks(markdown: str) -> list[str]:
    starts = block_starts(markdown)
    ends = [*starts[1:], len(markdown)]
    return [markdown[start:end] for start, end in zip([0, *starts[1:]], ends, strict=True)] or [markdown]


def _remembered(knows: Knows) -> Knows:
    looked_at: dict[str, bool] = {}

    def is_safe(address: str) -> bool:
        if address not in looked_at:
            looked_at[address] = len(looked_at) < ADDRESSES_MAX and knows(address)
        return looked_at[address]

    return is_safe


def _block_with_known_links(markdown: str, is_safe: Knows) -> str:
    nodes = parse(markdown)
    changed = [_block(node, is_safe) for node in nodes]
    if all(old is new for old, new in zip(nodes, changed, strict=True)):
        return markdown
    ends = len(markdown) - len(markdown.rstrip("\n"))
    return render_tree(changed, MARKDOWN).rstrip("\n") + ("\n" * max(ends, 2) if ends else "")


def _body(address: str) -> str:
    """Strip a URL's scheme and trailing slash, which people and models write inconsistently."""
    match = _SCHEME.match(address)
    return address[match.end() if match else 0 :].removeprefix("//").rstrip("/")


def _occurs_in(body: str, text: str) -> bool:
    at = text.find(body)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(body) : at + len(body) + 2]
        ends = (
            not after
            or after[0].isspace()
            or after[0] in "<>()[]{}|\"'`\\,"
            or (after[0] in "/.;:!?*_~" and _ends(after[1:]))
        )
        if ends and not (before.isalnum() or (before in ("-", ".", "_", "@", "%") and before)):
            return True
        at = text.find(body, at + 1)
    return False


def _ends(rest: str) -> bool:
    return not rest or rest.isspace() or rest in "<>()[]{}|\"'`\\,.;:!?*_~"


def _bare(word: str) -> str:
    return word.rstrip(ENDING)


def _unknown(text: str, is_safe: Knows) -> bool:
    return any(_is_made_up(word, is_safe) for _, word in _words_in(text))


def _words_in(text: str) -> Iterable[tuple[int, str]]:
    """Yield each word with its offset. A URL may continue after a bracket, because some chats link it that way."""
    at = 0
    while match := _WORDS.search(text, at):
        word = _bare(match[0])
        if is_address(word) and (whole := _ADDRESS.match(text, match.start())) is not None:
            word = _bare(whole[0])
        yield match.start(), word
        at = max(match.end(), match.start() + len(word))


def _is_made_up(word: str, is_safe: Knows) -> bool:
    """Return True if the word is an unknown URL, as written or after decoding escapes and entities."""
    from html import unescape

    return any(is_address(read) and not is_safe(read) for read in {word, unescape(_ESCAPE.sub(r"\1", word))})


def _block(node: Node, is_safe: Knows) -> Node:
    match node.kind:
        case "raw":
            return Node("fence", text=f"{node.text}\n") if _unknown(node.text, is_safe) else node
        case "fence" | "rule" | "code" | "break":
            return node
        case "text" | "token" | "link":
            return node
        case _:
            children = list(_spans(node.children, is_safe))
            if node.kind in _INLINE and _unknown(_visible(children), is_safe):
                children = list(_spans(_unstyled(children), is_safe))
            is_same = len(children) == len(node.children) and all(map(_is_same, children, node.children))
            return node if is_same else replace(node, children=children)


def _visible(nodes: Iterable[Node]) -> str:
    return "".join(" " if node.kind == "code" else node.text or _visible(node.children) for node in nodes)


def _unstyled(nodes: Iterable[Node]) -> list[Node]:
    """Remove styles and links. A URL that they split becomes one word again, as in chats."""
    flat: list[Node] = []
    for node in nodes:
        leaves = [node] if node.kind in ("code", "break") or not node.children else _unstyled(node.children)
        for leaf in leaves:
            if flat and flat[-1].kind == "text" and leaf.kind in ("text", "token"):
                flat[-1] = Node("text", text=flat[-1].text + leaf.text)
            else:
                flat.append(Node("text", text=leaf.text) if leaf.kind == "token" else leaf)
    return flat


def _is_same(node: Node, other: Node) -> bool:
    return node is other


def _spans(nodes: Iterable[Node], is_safe: Knows) -> Iterable[Node]:
    for node in nodes:
        match node.kind:
            case "token" if _unknown(node.text, is_safe):
                yield Node("code", text=node.text)
            case "text" if _TAG.search(node.text):  # Rendering the text again escapes the tag.
                yield from _words(node.text, is_safe)
            case "text" if _unknown(node.text, is_safe):
                yield from _words(node.text, is_safe)
            case "link":
                yield from _link(node, is_safe)
            case _:
                yield _block(node, is_safe)


def _words(text: str, is_safe: Knows) -> Iterable[Node]:
    at = 0
    for start, word in _words_in(text):
        if _is_made_up(word, is_safe):
            if start > at:
                yield Node("text", text=text[at:start])
            yield Node("code", text=word)
            at = start + len(word)
    if at < len(text):
        yield Node("text", text=text[at:])


def _link(node: Node, is_safe: Knows) -> Iterable[Node]:
    label = list(_spans(node.children, is_safe))
    is_known = is_safe(node.url) if is_address(node.url) else True
    if is_known:
        is_same = all(map(_is_same, label, node.children)) and len(label) == len(node.children)
        title = "" if _unknown(node.title, is_safe) else node.title
        yield node if is_same and title == node.title else replace(node, children=label, title=title)
        return
    if plain_text(node.children).strip() not in (node.url, _body(node.url), ""):
        yield from label
        yield Node("text", text=" ")
    yield Node("code", text=node.url)
