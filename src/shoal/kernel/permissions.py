"""Actions, decisions, askers and access tokens.

    token scope   allowed
    -----------   ----------------------------------------------------------------------------------------------
    chat          talk in the threads of the token's person, and read and steer only these threads
    read          read everything except tokens, and change nothing
    approve       the same as read, and decide approvals as the token's person, who must be an approver
    admin         everything that the owner's token allows

A token with an agent is also limited to that agent's threads.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias, get_args

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.ids import OWN_PLATFORMS, CardId, ThreadId, channel_of

Decision: TypeAlias = Literal["allow", "ask", "deny"]

STRICTNESS: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}

Trust: TypeAlias = Literal["untrusted", "trusted", "owner"]
"""Trust levels.

`untrusted`: people admitted only by `*`.
`trusted`: people named in the access rules.
`owner`: the owner.
"""

TRUST_ORDER: dict[Trust, int] = {"untrusted": 0, "trusted": 1, "owner": 2}


PUSH = " git push:"
"""A `git push` has a second action with this suffix after the tool name. It names the destination: `tool:bash git
push:ADDRESS BRANCH`.
"""
BY_ITSELF = " alone:"
"""A command whose effect depends only on its text has a second action with this suffix after the tool name: `tool:bash
alone:rm -r build`.
"""


class Action(msgspec.Struct, frozen=True):
    """One action of a call, `tool:<name>:<detail>`. It is built only from resolved arguments.

    The fields after `also` describe a shell command, with paths as the command sees them (`/workspace/…`).
    """

    text: str
    opaque: bool = False
    """True if an allow rule must name the action explicitly, as for `eval`, `sh -c` and text that cannot be parsed.

    The literal beginning of the rule's pattern must then include all of `naming`.
    """
    whole: bool = False
    """True for the full text of a shell command, or for another form of that text. Only deny patterns match such an
    action.
    """
    naming: str = ""
    """Prefix of `text` that an allow rule must name if the action is opaque. Empty means all of `text`."""
    also: tuple[str, ...] = ()
    """Other names of the action, which rules also match. For example, a redirection is both `tool:bash:> PATH` and
    `tool:write:PATH`.
    """
    harmless: bool = False
    """True if the program, run with these options, is known not to run other programs and not to change files that a
    later command executes.
    """
    runs: tuple[str, ...] = ()
    """Files whose content determines the effect of the action, such as a script, a makefile, a repository's
    configuration or an uploaded file.
    """
    runs_more: bool = False
    """Whether the action may also run content that it does not name."""
    reads: tuple[str, ...] | None = ()
    """Files and folders that the action can read. None if unknown."""
    writes: tuple[str, ...] | None = ()
    """Files and folders that the action changes or creates. None if unknown."""

    @property
    def tool(self) -> str:
        return self.text.removeprefix("tool:").partition(":")[0]

    @property
    def detail(self) -> str:
        return self.text.removeprefix("tool:").partition(":")[2]


class Ruling(msgspec.Struct, frozen=True):
    """The permission engine's decision on one action.

    `rule` is the list and pattern of the rule that matched, or empty if no rule matched.
    """

    action: str
    decision: Decision
    rule: str = ""


class CoveredFile(msgspec.Struct, frozen=True):
    """A file as it was when approval was requested.

    `path`: the path that commands see.
    `size_bytes`: -1 if the file did not exist.
    `digest`: SHA-256 of the content in hex. Empty if the file did not exist.
    """

    path: str
    size_bytes: int
    digest: str


class Coverage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content that determines the effect of a call in addition to its arguments. An approval covers this content."""

    files: tuple[CoveredFile, ...] = ()
    """Files that the call names."""
    others: int = 0
    """Number of other code files in the folders from which the call may run code."""
    others_digest: str = ""
    """Combined digest of the other files."""
    uncovered: str = ""
    """Reason why some content is not covered, as the end of "… because …". Such a call can only be allowed once."""
    sends: bool = False
    """True if the call sends the files instead of running them."""


NO_COVERAGE = Coverage()


class ValueOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Origin of a value that occurs in a call and, verbatim, in earlier text.

    `named_by`: person whose words contain the value, or "you".
    `source`: untrusted source, if only its text contains the value.

    This informs people and never permits anything, because short values match by chance. For example, "13" also occurs
    in "June 13".
    """

    value: str
    named_by: str = ""
    source: str = ""


class StandingRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The narrowest rule that would have allowed a call without approval.

    It applies to one agent and to one person, with all identities of that person (PLATFORM:USER). It applies only where
    the person asked: in direct conversations, or in one channel (PLATFORM:CHANNEL).
    """

    allow: tuple[str, ...] = ()
    words: str = ""
    """Description of the patterns for people."""
    agent: str = ""
    users: tuple[str, ...] = ()
    channel: str = ""
    answered: int = 0
    """Number of recent decisions on the same actions."""
    allowed: int = 0
    """Number of recent decisions that allowed the same actions."""


NO_RULE = StandingRule()


class CardItem(msgspec.Struct, frozen=True):
    """A call's position on an approval card, and the details that the card shows about it."""

    card: CardId = CardId("")
    """Id of a card with several calls, on which this call is `number` (from 1) of `total`. Empty if the call has its
    own card.
    """
    number: int = 1
    total: int = 1
    agent: str = ""
    person: str = ""
    """Person on whose behalf the agent asks."""
    why: str = ""
    """The model's explanation of the call, as plain text."""
    origins: tuple[ValueOrigin, ...] = ()
    staged: bool = False
    """True if the call was staged: the turn continued without its result, and the card was posted at the end of the
    turn.
    """
    files: str = ""
    """Markdown description of the turn's file changes. Set only for the first call on the card."""
    always: StandingRule = NO_RULE
    """Rule that the owner can create from this call."""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Untrusted sources of values in the call that appear nowhere else."""
        return tuple(dict.fromkeys(origin.source for origin in self.origins if origin.source))


ALONE = CardItem()


class Asker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The person for whom a call is made. Taken from the inbound message, never from a model's text.

    On the page and in the API, `user` is PLATFORM:USER if the token was issued to a person. That person is never the
    owner of the page.
    """

    trust: Trust
    user: str = ""
    name: str = ""
    roles: tuple[str, ...] = ()
    platform: str = ""
    channel: str = ""
    kind: Literal["direct", "group"] = "direct"
    known_as: tuple[str, ...] = ()
    """All linked identities of the person (PLATFORM:USER), including this one."""
    token: str = ""
    """Name of the access token that the person used."""

    @property
    def identity(self) -> str:
        if self.platform in OWN_PLATFORMS and ":" in self.user:
            return self.user
        return f"{self.platform}:{self.user}"

    @property
    def identities(self) -> tuple[str, ...]:
        """All identities of the person as PLATFORM:USER, in a stable order."""
        return self.known_as or (self.identity,)


class Audience(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits on what a turn may see beyond its own conversation, based on the asker and the readers.

    See the table in docs/security.md.
    """

    everywhere: bool = False
    """True if the turn may see all threads, because the owner asks and nobody else reads the conversation."""
    person: str = ""
    """Person whose private memory the turn sees. Empty if other people read the conversation."""
    guest: bool = False
    """Whether untrusted people may read the conversation. The turn then uses its channel's workspace."""
    speaker: str = ""
    """Person whose messages the turn answers. Also set if other people read the conversation."""

    def within(self, chat: ThreadId) -> str:
        """Return the prefix of the thread ids that a turn in this thread may see. An empty prefix means all threads."""
        return "" if self.everywhere else channel_of(chat)


TokenScope: TypeAlias = Literal["chat", "read", "approve", "admin"]
TOKEN_SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)

TOKEN_NAME = lazy_re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Pattern for names of access tokens, and of people who are admitted only by a token (web:NAME)."""

_SPAN = lazy_re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class AccessToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored access token.

    `digest`: SHA-256 of the token in hex.
    `person`: PLATFORM:USER.
    `used_on`: day of the last use, in UTC.
    """

    name: str
    digest: str
    scope: TokenScope
    person: str
    created_by: str
    created_at: datetime
    agent: str = ""
    expires_at: datetime | None = None
    used_on: str = ""


TOKENS_MAX = 1000


def parse_expiry(text: str, now: datetime) -> datetime:
    """Parse the expiry of a token.

    Accepts a duration (`30m`, `12h`, `90d`, `4w`), a date (midnight UTC), or a time with a UTC offset. Raises
    InvalidInput for any other text, and for times in the past.
    """
    span = _SPAN.fullmatch(text)
    try:
        if span is not None:
            moment = now + timedelta(**{_UNITS[span[2]]: int(span[1])})
        elif re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                raise ValueError("no offset")
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{text[:40]!r} is not a valid expiry. Use a duration such as 90d or 12h, or a time such as 2027-01-31 "
            "or 2027-01-31T09:00:00Z."
        ) from error
    if moment <= now:
        raise InvalidInput(f"{text[:40]!r} is in the past. Choose a later time.")
    return moment
