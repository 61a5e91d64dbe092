"""Slack parsing and encoding without a connection."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.kernel.commands import CommandTable
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import UNOPENED, make_thread_id, parse_thread_id, thread_address
from shoal.markdown.render import render_markup
from shoal.platforms.slack.send import MRKDWN, SOFT_HYPHEN, channel_name, place_of
from shoal.platforms.slack.wire import (
    EventCall,
    SlackBot,
    SlackMessage,
    SlashCommand,
    command_in,
    is_addressed,
    is_signed,
    is_written,
    prompt_of,
    signature_of,
    text_of,
    thread_of,
)
from shoal.testing.clock import START
from shoal.testing.platforms.slack_markup import shown_text

ME = SlackBot(user_id="UBOT", bot_id="BBOT", team_id="T1", user="shoal")
STAMPS = st.from_regex(r"[0-9]{1,10}\.[0-9]{6}", fullmatch=True)
CHANNELS = st.from_regex(r"[CDG][A-Z0-9]{2,12}", fullmatch=True)


def written(**fields: object) -> SlackMessage:
    plain = {"type": "message", "channel": "C1234", "user": "UADA", "text": "hi", "ts": "1767603600.000001"}
    return SlackMessage(**{**plain, **fields})  # pyrefly: ignore[bad-argument-type]


# ---- incoming ----


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("<@UBOT> what is the tide?", "what is the tide?"),
        ("<@UBOT|shoal>   what?", "what?"),
        ("ask <@UBOT> and <@UADA>", "ask and <@UADA>"),
        ("see <https://example.com/a_b>", "see https://example.com/a_b"),
        ("see <https://example.com|the *page*>", "see the *page* (https://example.com)"),
        ("<mailto:a@b.example|a@b.example>", "a@b.example"),
        ("in <#C1|harbour> and <#C2>", "in #harbour and <#C2>"),
        ("<!here> <!channel|@channel> <!subteam^S1|@crew> <!date^1^{date}|today>", "@here @channel @crew today"),
        ("1 &lt; 2 &amp;&amp; 3 &gt; 2 &amp;lt;", "1 < 2 && 3 > 2 &lt;"),
        ("<", "<"),
        ("", ""),
    ],
)
def test_slack_markup_is_read(raw: str, plain: str) -> None:
    assert text_of(raw, ME) == plain


@given(st.text())
def test_any_text_is_read(raw: str) -> None:
    assert text_of(raw, ME) == text_of(raw, ME).strip()


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc")), max_size=80))
def test_literal_text_round_trips(text: str) -> None:
    if "`" in text or not text.strip() or text != text.strip():
        return
    sent = render_markup(f"`{text}`", MRKDWN)
    assert shown_text(sent) == text.replace(SOFT_HYPHEN, "")  # soft hyphens are invisible


@pytest.mark.parametrize("text", ["＞ 引用", "＊重点＊です", "名前＿の＿欄", "｀符号｀", "a ＞ b", "＊", "1 ＊ 2 ＊ 3"])
def test_full_width_marks_are_not_markup(text: str) -> None:
    assert shown_text(render_markup(text, MRKDWN)) == text


@given(CHANNELS, STAMPS, st.one_of(st.just(""), STAMPS))
def test_thread_ids_survive_a_round_trip(channel: str, ts: str, thread_ts: str) -> None:
    thread = thread_of("slack.second", channel, ts, thread_ts)
    assert parse_thread_id(thread) == thread
    assert thread_address(thread).channel == channel
    expected = thread_ts or ("" if channel.startswith("D") else ts)
    assert place_of(thread) == (channel, expected)


@example("0")
@given(st.text(min_size=1, max_size=20))
def test_posts_never_go_to_a_malformed_thread(part: str) -> None:
    if part == UNOPENED or re.fullmatch(r"[0-9]+\.[0-9]+", part):
        return
    with pytest.raises(PlatformError) as caught:
        place_of(make_thread_id("slack", "C1234", part))
    assert caught.value.permanent


@pytest.mark.parametrize(
    "fields",
    [
        {"bot_id": "B1"}, {"user": "UBOT"}, {"user": ""}, {"user": "USLACKBOT"}, {"subtype": "channel_join"},
        {"subtype": "bot_message"}, {"ts": "now"}, {"ts": "9" * 30 + ".0"}, {"thread_ts": "../.."}, {"channel": "a/b"},
        {"channel": ""},
    ],
)  # fmt: skip
def test_messages_without_a_human_author_are_ignored(fields: dict[str, str]) -> None:
    assert is_written(written(), ME)
    assert not is_written(written(**fields), ME)


def test_a_message_starts_the_thread_of_its_answer() -> None:
    prompt = prompt_of("slack", written(), ME)
    assert (prompt.thread, prompt.key) == ("slack:C1234:1767603600.000001", "C1234/1767603600.000001")
    assert prompt.at.isoformat() == "2026-01-05T09:00:00.000001+00:00"
    assert prompt_of("slack", written(channel="D1234"), ME).thread == "slack:D1234:0"


def test_only_the_bots_own_name_addresses_it() -> None:
    assert is_addressed(written(text="hey <@UBOT>"), ME)
    assert not is_addressed(written(text="hey <@UBOTHER> and UBOT"), ME)


def test_an_event_belongs_to_the_installed_workspace() -> None:
    shared = EventCall(team_id="TOTHER", authorizations=())
    assert not shared.is_of("T1")
    assert EventCall(team_id="T1").is_of("T1")


@pytest.mark.parametrize("timestamp", ["", "soon", "1767603600.5", "9" * 400, "-1767603600", "１７６７６０３６００"])
def test_an_invalid_timestamp_is_not_signed(timestamp: str) -> None:
    assert not is_signed("secret", timestamp, signature_of("secret", timestamp, b"{}"), b"{}", START)


def test_without_a_secret_nothing_is_signed() -> None:
    stamp = str(int(START.timestamp()))
    assert not is_signed("", stamp, signature_of("", stamp, b"{}"), b"{}", START)
    assert is_signed("s", stamp, signature_of("s", stamp, b"{}"), b"{}", START)


# ---- outgoing ----


@pytest.mark.parametrize(
    ("name", "made"),
    [("Tide Table!", "tide-table"), ("--", "channel"), ("x" * 99, "x" * 80), ("Ünder_score", "ünder_score")],
)
def test_channel_names_are_valid_in_slack(name: str, made: str) -> None:
    assert channel_name(name) == made


@pytest.mark.parametrize(
    ("command", "text", "name", "argument"),
    [
        ("/shoal", "stop all", "stop", "all"), ("/stop", "all", "stop", "all"), ("/shoal", "", "help", ""),
        ("/shoal", " /steer  go on", "steer", "go on"),
    ],
)  # fmt: skip
def test_slash_commands_are_read(command: str, text: str, name: str, argument: str) -> None:
    spoken = command_in(SlashCommand(command=command, text=text), CommandTable())
    assert spoken is not None
    assert (spoken.name, spoken.argument) == (name, argument)


def test_other_messages_are_not_commands() -> None:
    assert command_in(SlashCommand(command="/shoal", text="dance"), CommandTable()) is None
