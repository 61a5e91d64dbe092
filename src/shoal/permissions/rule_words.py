"""Describe rules in words, and create patterns from a person's choices. All functions are pure.

Patterns that are created here can be converted back to choices. Patterns of built-in profiles have descriptions too.
Any other pattern has no description and is shown unchanged.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.permissions import BY_ITSELF, PUSH
from shoal.kernel.traits import Traits, TraitsByName
from shoal.permissions.built_in import ALIKE_READERS, ALIKE_WEB, ALIKE_WRITERS, BUILT_IN, built_in_rules

Subject: TypeAlias = Literal["command", "read", "write", "web", "tool"]

_TITLES = {"command": "the command", "read": "reading", "write": "writing", "web": "the page"}
_BELOW: dict[Subject, str] = {"command": "( .*)?", "read": "(/.*)?", "write": "(/.*)?", "web": "(/.*)?"}
_ANYTHING_OF_A_TOOL = lazy_re.compile(r"\(\?s:tool:([A-Za-z0-9_-]+)\(:\.\*\)\?\)")
_PLAIN = lazy_re.compile(r"\\([ \-#&~])")
"""Matches an escape that `re.escape` adds unnecessarily."""
_BEGINNING = lazy_re.compile(r"tool:(?:\(([a-z0-9_|-]+)\)|(bash)):")
WORKSPACE = Path("/workspace")
"""Working directory of a command that is only analyzed."""


class RuleSubject(msgspec.Struct, frozen=True):
    """The subject of a rule: a command, files that are read or written, web pages, or all calls to a tool.

    If `beginning` is true, the rule also covers anything that begins with `text`, such as a command with more words,
    or paths below a folder or URL.
    """

    what: Subject
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=900)]
    beginning: bool = False


def literal_pattern(text: str) -> str:
    return _PLAIN.sub(r"\1", re.escape(text))


def _named(what: Subject, traits: TraitsByName) -> list[str]:
    match what:
        case "command":
            return [*traits.names(lambda tool: tool.takes_commands)]
        case "read":
            return [*traits.names(lambda tool: tool.shows_file), *ALIKE_READERS]
        case "write":
            return [*traits.names(lambda tool: tool.writes_file), *ALIKE_WRITERS]
        case "web":
            return [*traits.names(lambda tool: tool.names == "address"), *ALIKE_WEB]
        case "tool":
            return []


def pattern_of(subject: RuleSubject, traits: TraitsByName) -> str:
    """Return the pattern for a subject. Raises InvalidInput if the text is not valid for a rule."""
    text = subject.text.strip()
    if not text or not text.isprintable():
        raise InvalidInput("A rule must be one line of visible characters.")
    match subject.what:
        case "tool":
            if not re.fullmatch("[A-Za-z0-9_-]+", text):
                raise InvalidInput(f"{text[:80]!r} is not a tool name. Tool names have letters, digits, _ and -.")
            return f"(?s:tool:{text}(:.*)?)"
        case "command":
            from shoal.permissions.actions import shell_actions  # Imported here because it is slow.

            parts = [action for action in shell_actions("bash", text, cwd=WORKSPACE) if not action.whole]
            if len(parts) != 1 or not re.match("tool:bash:.", parts[0].text):
                raise InvalidInput(
                    "A rule covers one command. Add a rule for each command separated by `&&`, `|` or `;`, and a "
                    "write rule for each file after `>`."
                )
            text = parts[0].text.removeprefix("tool:bash:")
        case "web":
            if not re.match(r"https?://[^/\s]", text):
                raise InvalidInput(f"{text[:80]!r} is not a URL. It must begin with https:// or http://.")
            text = text.rstrip("/") if subject.beginning else text
        case "read" | "write":
            path = text if text.startswith("/") else f"/workspace/{text}"
            if ".." in path.split("/"):
                raise InvalidInput("A path in a rule cannot contain `..`.")
            text = re.sub("/+", "/", path.replace("/./", "/")).removesuffix("/")
            if not text:
                raise InvalidInput("Specify a file or a folder. To cover all files, add a rule for the tool.")
    begin = f"tool:({'|'.join(_named(subject.what, traits))}):"
    return begin + literal_pattern(text) + (_BELOW[subject.what] if subject.beginning else "")


def subject_of(pattern: str, traits: TraitsByName) -> RuleSubject | None:
    """Return the subject of a pattern. Returns None unless the pattern was created from choices or a suggestion."""
    if tool := _ANYTHING_OF_A_TOOL.fullmatch(pattern):
        return RuleSubject("tool", tool[1])
    if (begin := _BEGINNING.match(pattern)) is None:
        return None
    names = set((begin[1] or "").split("|"))
    for what, below in _BELOW.items():
        if names != set(_named(what, traits)) and not (what == "command" and begin[2]):
            continue
        rest = pattern[begin.end() :]
        beginning = rest.endswith(below)
        text = re.sub(r"\\(\W)", r"\1", rest := rest.removesuffix(below))
        if text and literal_pattern(text) == rest:
            return RuleSubject(what, text, beginning)
    return None


def words_of(pattern: str, traits: TraitsByName) -> str:
    if words := _words(traits, traits.version).get(pattern):
        return words
    subject = subject_of(pattern, traits)
    if subject is None:
        return _words_of_one(pattern, traits)
    if subject.what == "tool":
        return f"everything the {subject.text} tool does"
    more = ", with any arguments" if subject.what == "command" else " and everything below it"
    return f"{_TITLES[subject.what]} {subject.text}{more if subject.beginning else ''}"


def _words_of_one(pattern: str, traits: TraitsByName) -> str:
    text = re.sub(r"\\(\W)", r"\1", pattern)
    name, _, detail = text.removeprefix("tool:").partition(":")
    if not text.startswith("tool:") or not detail or literal_pattern(text) != pattern:
        return ""
    tool, _, view = name.partition(" ")
    if f" {view}:" == PUSH:
        address, _, branch = detail.rpartition(" ")
        return f"git push to {address}, for {branch}"
    if f" {view}:" == BY_ITSELF:
        return f"exactly the command {detail}"
    match traits.of(tool):
        case Traits(names="address"):
            return f"reading the page {detail}"
        case Traits(names="listed" | "shown"):
            return f"reading {detail}"
        case Traits(names="edited" | "replaced"):
            return f"writing {detail}"
        case Traits(names="sent"):
            return f"sending {detail}"
        case Traits(harm="message"):
            return f"{tool} to {detail}, with any text"
        case _:
            return f"{tool} with exactly {detail}"


@lru_cache(maxsize=4)
def _words(traits: TraitsByName, version: int) -> dict[str, str]:
    return {rule.pattern: rule.words for name in BUILT_IN for rule in built_in_rules(name, traits)}
