"""Validation of Google Chat API calls, and the visible text of messages."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from shoal.testing.platforms import commonmark
from shoal.testing.platforms.tokens import Signer
from shoal.testing.platforms.wire import Refused, ok

TEXT_CHARS_MAX = 4096
MESSAGE_BYTES_MAX = 32_000

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Given: TypeAlias = "dict[str, Json]"


def refused(status: int, code: str) -> Refused:
    return Refused(ok({"error": {"code": status, "message": code, "status": code}}, status))


class _Named(msgspec.Struct):
    name: str = ""


class _Quoted(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    last_update_time: str


class _Parameter(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    value: str


class _Action(msgspec.Struct, forbid_unknown_fields=True):
    function: str
    parameters: list[_Parameter]


class _OnClick(msgspec.Struct, forbid_unknown_fields=True):
    action: _Action


class _Button(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    text: str
    on_click: _OnClick


class _Buttons(msgspec.Struct, forbid_unknown_fields=True):
    buttons: list[_Button]


class _Widget(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    button_list: _Buttons


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    widgets: list[_Widget]


class _Card(msgspec.Struct, forbid_unknown_fields=True):
    sections: list[_Section]


class _CardWithId(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    card_id: str
    card: _Card


class _Message(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    text: str = ""
    markup_syntax: Literal["MARKUP_SYNTAX_CHAT", "MARKUP_SYNTAX_MARKDOWN"] = "MARKUP_SYNTAX_CHAT"
    cards_v2: list[_CardWithId] = msgspec.field(name="cardsV2", default_factory=list[_CardWithId])
    thread: _Named = msgspec.field(default_factory=_Named)
    private_message_viewer: _Named = msgspec.field(default_factory=_Named)
    quoted_message_metadata: _Quoted | None = None


class Parts(NamedTuple):
    """The content of a message to post: its text, thread, private viewer and quoted message."""

    text: str
    thread: str
    viewer: str
    quoted: str


def _read(given: Given) -> _Message:
    try:
        return msgspec.convert(given, _Message)
    except msgspec.ValidationError as error:
        raise refused(400, "INVALID_ARGUMENT") from error


def check_message(given: Given, times: Mapping[str, str]) -> Parts:
    """Parse a message. Raises Refused if it is invalid.

    `times` maps the name of each quotable message to the time of its last update.
    """
    message = _read(given)
    too_long = len(message.text) > TEXT_CHARS_MAX or len(msgspec.json.encode(given)) > MESSAGE_BYTES_MAX
    quoted = message.quoted_message_metadata
    wrongly_quoted = quoted is not None and times.get(quoted.name) != quoted.last_update_time
    if too_long or wrongly_quoted or not (message.text or message.cards_v2):
        raise refused(400, "INVALID_ARGUMENT")
    viewer = message.private_message_viewer.name
    return Parts(message.text, message.thread.name, viewer, quoted.name if quoted is not None else "")


def buttons_of(given: Given) -> tuple[tuple[str, str], ...]:
    cards = _read(given).cards_v2
    widgets = [widget for card in cards for section in card.card.sections for widget in section.widgets]
    return tuple(
        (button.text, button.on_click.action.parameters[0].value)
        for widget in widgets
        for button in widget.button_list.buttons
    )


def check_assertion(form: Mapping[str, str], key: Signer, account: str, audience: str, now: datetime) -> str:
    import jwt

    try:
        claims: dict[str, object] = jwt.decode(
            form["assertion"], key.key.public_key(), algorithms=["RS256"], audience=audience, issuer=account,
            options={"verify_exp": False, "verify_iat": False},
        )  # fmt: skip
    except (KeyError, jwt.InvalidTokenError) as error:
        raise refused(400, "invalid_grant") from error
    issued, until = claims.get("iat"), claims.get("exp")
    if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" or not (
        isinstance(issued, int) and isinstance(until, int) and issued <= now.timestamp() < until <= issued + 3600
    ):
        raise refused(400, "invalid_grant")
    return str(claims.get("scope", ""))


_PEOPLE = re.compile(r"<(users/(?:all|[0-9]+))>", re.IGNORECASE)


def shown_text(text: str) -> str:
    """Return the visible text of Markdown. Mentions become `<users/…>`.

    Source: developers.google.com/workspace/chat, format messages: MARKUP_SYNTAX_MARKDOWN is CommonMark.
    """
    return commonmark.shown_text(_PEOPLE.sub(r"\\<\1\\>", text), html=False, break_="\n")


def shown_runs(text: str) -> list[commonmark.Run]:
    return commonmark.shown_runs(_PEOPLE.sub(r"\\<\1\\>", text), html=False, break_="\n")


class ChatMessage(msgspec.Struct):
    """A message in its current state. `text` is the source, and `shown` is the visible text."""

    name: str
    space: str
    thread: str
    sender: str
    text: str = ""
    created_at: str = ""
    buttons: tuple[tuple[str, str], ...] = ()
    viewer: str = ""
    quoted: str = ""
    quote_type: str = "REPLY"
    changed_at: str = ""
    edits: int = 0
    attachment: tuple[Given, ...] = ()
    syntax: str = "MARKUP_SYNTAX_CHAT"

    @property
    def shown(self) -> str:
        return shown_text(self.text) if self.syntax == "MARKUP_SYNTAX_MARKDOWN" else self.text


def page_of(messages: Sequence[ChatMessage], params: Mapping[str, str]) -> tuple[Sequence[ChatMessage], str]:
    """Return a page of at most three messages, and the token of the next page."""
    wanted = params.get("filter", "")
    thread = re.search(r"thread\.name = (\S+)", wanted)
    after = re.search(r'create_time > "([^"]+)"', wanted)
    matches = [message for message in messages if not after or message.created_at > after[1]]
    matches = [
        message for message in matches if not thread or thread[1] == f"spaces/{message.space}/threads/{message.thread}"
    ]
    if params.get("orderBy") == "createTime desc":
        matches.reverse()
    start, size = int(params.get("pageToken", "0")), min(int(params.get("pageSize", "25")), 3)
    return matches[start : start + size], str(start + size) if len(matches) > start + size else ""
