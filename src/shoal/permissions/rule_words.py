"""Rules in words: what a pattern is about, as a sentence, and the pattern of what a person has chosen. Pure.

A pattern that was made here can be read back; those that come with Shoal have their words below; of any other there are
none, and the pattern itself has to be read.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from shoal.domain.errors import InvalidInput
from shoal.permissions.actions import shell_actions
from shoal.permissions.profiles import BUILTIN_PROFILES, COMMANDS, EVERYTHING, READERS, WRITERS

Subject: TypeAlias = Literal["command", "read", "write", "web", "tool"]

BEGINS = {
    "command": f"tool:{COMMANDS}:",
    "read": f"tool:{READERS}:",
    "write": f"tool:{WRITERS}:",
    "web": "tool:(read_url|fetch|web_fetch|browse):",
}
_TITLES = {"command": "the command", "read": "reading", "write": "writing", "web": "the page"}
_BELOW = {"command": "( .*)?", "read": "(/.*)?", "write": "(/.*)?", "web": "(/.*)?"}
_ANYTHING_OF_A_TOOL = re.compile(r"\(\?s:tool:([a-z0-9_-]+)\(:\.\*\)\?\)")
_PLAIN = re.compile(r"\\([ \-#&~])")
"""What `re.escape` escapes without need."""
WORKSPACE = Path("/workspace")
"""Where a command that is only looked at would run."""


class RuleSubject(msgspec.Struct, frozen=True):
    """What a rule is about: a command, files that are read or written, web pages (`text` says which), or all that a
    tool of this name does. `beginning`: what follows `text`, too: further words of a command, what is below a folder
    or an address."""

    what: Subject
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=900)]
    beginning: bool = False


def literal_pattern(text: str) -> str:
    """A pattern that matches exactly this text, as readable as it can be."""
    return _PLAIN.sub(r"\1", re.escape(text))


def pattern_of(subject: RuleSubject) -> str:
    """The pattern for what was chosen. Raises InvalidInput for a text that no rule can be made of."""
    text = subject.text.strip()
    if not text or not text.isprintable():
        raise InvalidInput("Say which, in one line of characters that can be seen.")
    match subject.what:
        case "tool":
            if not re.fullmatch("[a-z0-9_-]+", text):
                raise InvalidInput(f"{text[:80]!r} is no tool's name: small letters, digits, _ and -.")
            return f"(?s:tool:{text}(:.*)?)"
        case "command":
            parts = [one for one in shell_actions("bash", text, cwd=WORKSPACE) if not one.whole]
            if len(parts) != 1 or not re.match("tool:bash:.", parts[0].text):
                raise InvalidInput(
                    "A rule is about one command. Make one for each between `&&`, `|` and `;`, and one about writing "
                    "for each file that `>` writes to."
                )
            text = parts[0].text.removeprefix("tool:bash:")
        case "web":
            if not re.match(r"https?://[^/\s]", text):
                raise InvalidInput(f"{text[:80]!r} is no address of a page; it begins with https:// or http://.")
            text = text.rstrip("/") if subject.beginning else text
        case "read" | "write":
            path = text if text.startswith("/") else f"/workspace/{text}"
            if ".." in path.split("/"):
                raise InvalidInput("A path in a rule goes straight down: leave out `..`.")
            text = re.sub("/+", "/", path.replace("/./", "/")).removesuffix("/")
            if not text:
                raise InvalidInput("Name a file or a folder; for all of them make a rule about the tool.")
    return BEGINS[subject.what] + literal_pattern(text) + (_BELOW[subject.what] if subject.beginning else "")


def subject_of(pattern: str) -> RuleSubject | None:
    """What a pattern is about that was made of choices, or of a suggestion; None for any other."""
    if tool := _ANYTHING_OF_A_TOOL.fullmatch(pattern):
        return RuleSubject("tool", tool[1])
    for what, begin in (*BEGINS.items(), ("command", "tool:bash:")):
        if not pattern.startswith(begin):
            continue
        rest = pattern.removeprefix(begin)
        beginning = rest.endswith(_BELOW[what])
        text = re.sub(r"\\(\W)", r"\1", rest := rest.removesuffix(_BELOW[what]))
        if text and literal_pattern(text) == rest:
            return msgspec.convert({"what": what, "text": text, "beginning": beginning}, RuleSubject)
    return None


def words_of(pattern: str) -> str:
    """What the pattern is about, in a few words; empty where only the pattern itself says it."""
    if pattern in _WORDS:
        return _WORDS[pattern]
    subject = subject_of(pattern)
    if subject is None:
        return ""
    if subject.what == "tool":
        return f"all that the tool {subject.text} does"
    more = {"command": ", whatever follows it", "web": " and what is below it"}.get(subject.what, " and all below it")
    return f"{_TITLES[subject.what]} {subject.text}{more if subject.beginning else ''}"


_GUARDED_DENY = (
    "pushing with git, and sending patches by mail",
    "changing where git pushes to, and committing to Subversion or Perforce",
    "changing anything on GitHub or GitLab with gh, glab or hub",
    "changing anything on GitHub with hub",
    "writing calls of the API of GitHub or GitLab",
    "calls of the API of GitHub or GitLab with fields, which write",
    "publishing packages, and signing in to package registries",
    "scripts of a package that publish, deploy or release",
    "installing, changing or removing what Helm manages",
    "deploying, releasing or publishing with Maven, Gradle or sbt",
    "publishing with twine, Vercel, Netlify, Fly, Heroku and the like",
    "managing machines with Ansible, Chef, Puppet, Salt and the like",
    "pushing, copying or deleting container images, and signing in for that",
    "building container images with --push",
    "changing anything in Kubernetes",
    "changing anything with Terraform or OpenTofu",
    "creating, changing, starting, stopping or deleting in a cloud",
    "attaching, moving, copying, sending or running in a cloud",
    "connecting to other machines with ssh, scp, rsync, nc and the like",
    "sending mail, and messages to other terminals",
    "sending data or files with curl",
    "requests of curl that may change something",
    "sending data with wget",
    "requests of HTTPie that may change something",
    "acting as another user, and switching services or the machine off and on",
    "mounting and formatting disks",
    "changing the agent itself",
)
_STANDARD_ALLOW = (
    "reading and listing in its own folders",
    "looking up the time, memory, skills, reminders and past messages",
    "writing in /workspace and /scratch, except inside .git",
    "sending files of its own folders",
    "remembering, reminders and subagents",
    "messages in the same conversation",
)
_STANDARD_ASK = (
    "every command",
    "web pages and searches",
    "reading, writing and sending files elsewhere",
    "changing the agent itself",
    "messages elsewhere, and commands that run on",
    "tasks for other agents",
    "tools of MCP servers",
)


def _built_in() -> dict[str, str]:
    guarded, standard = BUILTIN_PROFILES["guarded"], BUILTIN_PROFILES["standard"]
    lists = (
        (guarded.deny, _GUARDED_DENY),
        (guarded.allow, ("all but hardware, tools of MCP servers and messages", "messages in the same conversation")),
        (guarded.ask, ("every command that no other rule names", "tools of MCP servers")),
        (standard.allow, _STANDARD_ALLOW),
        (standard.ask, _STANDARD_ASK),
    )
    found = {pattern: words for patterns, said in lists for pattern, words in zip(patterns, said, strict=True)}
    return {**found, EVERYTHING: "everything"}


_WORDS = _built_in()
