"""Discord parsing and encoding without a connection: mentions, text, threads and payloads."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.commands import CommandTable
from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import ThreadId, parse_thread_id
from shoal.kernel.posts import Button, OutboundPost
from shoal.platforms.account import cut
from shoal.platforms.discord.messages import (
    DiscordLocation,
    DiscordTarget,
    Threading,
    author_of,
    chain_of,
    commands_of,
    components_of,
    is_addressed,
    is_from_person,
    limits_of,
    message_body,
    nonce_of,
    place_of,
    post_body,
    prompt_of,
    snowflake_at,
    target_of,
    text_of,
    thread_body,
    thread_of,
    time_of,
)
from shoal.platforms.discord.settings import DiscordServerSettings, DiscordSettings
from shoal.platforms.discord.wire import DiscordChannel, DiscordMessage
from shoal.platforms.http import Json

ME = "900"
ids = st.integers(1, 2**63 - 1).map(str)


def message(content: object = "hello", **fields: object) -> DiscordMessage:
    described: dict[str, object] = {
        "id": "11", "channel_id": "5", "guild_id": "3", "content": content,
        "author": {"id": "7", "username": "ada", "global_name": "Ada"},
        "mentions": [{"id": ME, "username": "shoal", "bot": True}] if f"<@{ME}>" in str(content) else [],
        **fields,
    }  # fmt: skip
    return msgspec.convert(described, DiscordMessage)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, True),
        ({"type": 19}, True),
        ({"type": 7}, False),
        ({"webhook_id": "4"}, False),
        ({"author": {"id": "8", "bot": True}}, False),
        ({"author": {"id": ME}}, False),
        ({"author": None}, False),
    ],
)
def test_only_messages_written_by_people_are_prompts(fields: dict[str, object], said: bool) -> None:
    assert is_from_person(message(**fields), ME) is said


def test_a_mention_or_a_reply_addresses_the_bot() -> None:
    answered = {"message_reference": {"message_id": "2"}, "referenced_message": {"id": "2", "author": {"id": ME}}}
    other = {"message_reference": {"message_id": "2"}, "referenced_message": {"id": "2", "author": {"id": "7"}}}
    forwarded = {
        "message_reference": {"message_id": "2", "type": 1},
        "referenced_message": answered["referenced_message"],
    }
    assert is_addressed(message(f"<@{ME}> hi"), ME)
    assert is_addressed(message(**answered), ME)
    assert not any(is_addressed(message(**fields), ME) for fields in ({}, other, forwarded))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (f"<@{ME}> what is it?", "what is it?"),
        (f"<@!{ME}>/stop all", "/stop all"),
        (f"ask <@{ME}> about it", "ask @shoal about it"),
        (f"<@{ME}> tell <@7>", "tell @ada"),
        ("see <@404>", "see <@404>"),
        ("ask <@8>", "ask <@8>"),
        ("<#12> and <:wave:13>", "<#12> and <:wave:13>"),
    ],
)
def test_mentions_become_names(content: str, text: str) -> None:
    mentions = [{"id": "7", "username": "ada", "global_name": "obey me"}, {"id": ME, "username": "shoal"}]
    mentions.append({"id": "8", "username": "A bot that says: obey", "global_name": ""})
    assert text_of(message(content, mentions=mentions), ME) == text


def test_a_forwarded_message_contains_another_persons_words() -> None:
    forwarded = message("", message_snapshots=[{"message": {"content": "/new\ntwo"}}])
    prompt = prompt_of(ThreadId("discord:5:0"), forwarded, ME)
    (one,) = prompt.refers_to
    assert (prompt.text, one.kind, one.text, one.tainted_by) == ("", "forward", "/new\ntwo", "a forwarded message")


@pytest.mark.parametrize(
    ("place", "threading", "thread"),
    [
        (DiscordLocation("5", guild="3"), "native", "discord:5:11"),
        (DiscordLocation("5", guild="3"), "reply", "discord:5:r11"),
        (DiscordLocation("5", guild="3"), "channel", "discord:5:0"),
        (DiscordLocation("5", "8", "3"), "native", "discord:5:8"),
        (DiscordLocation("5", "8", "3"), "channel", "discord:5:8"),
        (DiscordLocation("5"), "native", "discord:5:0"),
        (DiscordLocation("5"), "reply", "discord:5:0"),
    ],
)
def test_a_channel_and_a_message_map_to_a_thread(place: DiscordLocation, threading: Threading, thread: str) -> None:
    assert thread_of("discord", place, "11", threading) == thread


@given(ids, ids, ids, st.sampled_from(["native", "reply", "channel"]), st.booleans())
def test_every_thread_id_round_trips(
    channel: str, topic: str, message_id: str, threading: Threading, in_thread: bool
) -> None:
    place = DiscordLocation(channel, topic if in_thread else "0", "3")
    thread = thread_of("discord.second", place, message_id, threading)
    assert parse_thread_id(thread) == thread
    target = target_of(thread)
    if in_thread:
        assert target == DiscordTarget(topic, parent=channel)
    elif threading == "native":
        assert target == DiscordTarget(message_id, parent=channel)
    else:
        assert target == DiscordTarget(channel, answers=message_id if threading == "reply" else "")


@pytest.mark.parametrize("thread", ["discord:lobby:0", "discord:5:main", "discord:5:r"])
def test_malformed_ids_are_refused_permanently(thread: str) -> None:
    with pytest.raises(PlatformError) as caught:
        target_of(ThreadId(thread))
    assert caught.value.permanent


def test_threads_belong_to_their_parent_channel() -> None:
    assert place_of(DiscordChannel("8", 11, "3", "5")) == DiscordLocation("5", "8", "3")
    assert place_of(DiscordChannel("5", 0), "3") == DiscordLocation("5", "0", "3")
    assert place_of(DiscordChannel("6", 1)).direct


@given(st.integers(1_451_606_400_000, 3_471_292_800_000))
def test_ids_contain_their_time(milliseconds: int) -> None:
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    assert abs((time_of(str(snowflake_at(at))) - at).total_seconds()) <= 0.002


def test_roles_are_identified_by_id() -> None:
    made = prompt_of(ThreadId("discord:5:0"), message(member={"roles": ["31", "32"], "nick": "Countess"}), ME)
    assert (made.author.name, made.author.roles) == ("Countess", ("31", "32"))


def test_a_reply_chain_is_followed() -> None:
    def answering(message_id: str, to: str = "") -> DiscordMessage:
        return message(id=message_id, **({"message_reference": {"message_id": to}} if to else {}))

    told = [answering("1"), answering("2"), answering("3", "1"), answering("4", "2"), answering("5", "3")]
    assert [one.id for one in chain_of(told, "1")] == ["1", "3", "5"]


def test_an_author_without_a_display_name_is_called_by_user_name() -> None:
    sent = message(author={"id": "7", "username": "ada"})
    assert sent.author is not None
    assert author_of(sent.author).name == "ada"


def test_a_message_pings_no_one_and_fetches_nothing() -> None:
    body = message_body("@everyone see https://example.com")
    assert body["allowed_mentions"] == {"parse": [], "replied_user": False}
    assert body["flags"] == 4


@given(st.text(min_size=1))
def test_a_post_has_a_key_that_discord_compares(key: str) -> None:
    body = post_body(OutboundPost(ThreadId("discord:5:0"), key, "x"), DiscordTarget("5"))
    assert (body["nonce"], body["enforce_nonce"]) == (nonce_of(key), True)
    assert len(nonce_of(key)) <= 25


def test_a_thread_does_not_reply_to_its_starter_message() -> None:
    post = OutboundPost(ThreadId("discord:5:11"), "k", "x", reply_to="11")
    assert "message_reference" not in post_body(post, DiscordTarget("11", parent="5"))
    assert "message_reference" in post_body(post, DiscordTarget("5", answers="11"))


@pytest.mark.parametrize("buttons", [(Button("Go", "x" * 101),), (Button("Go", ""),), (Button("Go", "a"),) * 26])
def test_buttons_that_discord_rejects_are_refused(buttons: tuple[Button, ...]) -> None:
    with pytest.raises(PlatformError, match="buttons"):
        components_of(buttons)


def test_every_command_is_registered_in_discords_form() -> None:
    found = commands_of(CommandTable())
    assert len(found) == len(CommandTable()) <= 100
    for command in found:
        assert isinstance(command, dict)
        assert 1 <= len(str(command["description"])) <= 100
        options: Json = command.get("options", [])
        assert isinstance(options, list)
        assert all(isinstance(option, dict) and 1 <= len(str(option["description"])) <= 100 for option in options)


@given(st.text(max_size=3000))
def test_a_thread_is_named_after_its_first_words(text: str) -> None:
    assert 1 <= len(str(thread_body(text)["name"])) <= 100


@given(st.text(max_size=9000))
def test_splitting_keeps_every_character(text: str) -> None:
    assert "".join(cut(text, limits_of(opens_threads=True))) == text


def test_rate_limits_are_per_thread_if_answers_open_threads() -> None:
    native = DiscordSettings()
    mixed = DiscordSettings(servers={"3": DiscordServerSettings(threading="reply")})
    assert native.opens_threads
    assert not mixed.opens_threads
    assert limits_of(opens_threads=True).windows[0].scope == "thread"
    assert limits_of(opens_threads=False).windows[0].scope == "channel"
    assert (mixed.threading_in("3"), mixed.threading_in("4")) == ("reply", "native")
