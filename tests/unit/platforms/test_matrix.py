"""Matrix parsing and encoding without a connection."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.errors import PlatformError
from shoal.kernel.ids import channel_of, make_thread_id, parse_thread_id
from shoal.kernel.messages import Author
from shoal.kernel.posts import Button, OutboundPost
from shoal.markdown.render import rendered_length
from shoal.platforms.account import cut
from shoal.platforms.matrix.wire import (
    CONTENT_BYTES_MAX,
    EVENT_BYTES_MAX,
    LIMITS,
    WHOLE,
    EventContent,
    EventRelation,
    InReplyTo,
    MatrixBot,
    MatrixEvent,
    MatrixLocation,
    MatrixMentions,
    MatrixTarget,
    edit_content,
    is_addressed,
    is_from_person,
    message_text,
    path_of,
    post_content,
    prompt_of,
    relation_of,
    target_of,
    text_content,
    text_of,
    thread_of,
    time_of,
    transaction_of,
    unseen,
)

ME = MatrixBot("@shoal:harbour.example", "Shoal")
BUTTONS = (Button("Allow once", "allow:01K"), Button("Deny", "deny:01K"))
LOCAL = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-=/+", min_size=1, max_size=25)


def event(kind: str = "m.room.message", **fields: object) -> MatrixEvent:
    return msgspec.convert({"type": kind, "event_id": "$e", "sender": "@ada:harbour.example", **fields}, MatrixEvent)


def member(membership: str, before: str = "") -> MatrixEvent:
    content = msgspec.Raw(msgspec.json.encode({"membership": membership}))
    made = event("m.room.member", state_key=ME.user_id, unsigned={"prev_content": {"membership": before}})
    return msgspec.structs.replace(made, content=content)


@given(room=LOCAL, server=LOCAL, root=LOCAL)
def test_thread_ids_contain_their_room_and_message(room: str, server: str, root: str) -> None:
    for place, name, target in (
        (MatrixLocation(f"!{room}:{server}"), f"${root}", MatrixTarget(f"!{room}:{server}", f"${root}")),
        (MatrixLocation(f"!{room}"), WHOLE, MatrixTarget(f"!{room}")),
    ):
        thread = make_thread_id("matrix", place.room, name)
        assert parse_thread_id(thread) == thread
        assert target_of(thread) == target
        assert channel_of(thread) == channel_of(place.thread("matrix"))


@pytest.mark.parametrize(("channel", "thread"), [("general", "0"), ("!room", "5")])
def test_malformed_ids_are_refused_permanently(channel: str, thread: str) -> None:
    with pytest.raises(PlatformError) as caught:
        target_of(make_thread_id("matrix", channel, thread))
    assert caught.value.permanent


def test_ids_in_paths_cannot_lead_elsewhere() -> None:
    assert path_of("rooms", "!a/../b?c#d:e") == "/_matrix/client/v3/rooms/%21a%2F..%2Fb%3Fc%23d%3Ae"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Shoal: what is it?", "what is it?"),
        ("@shoal:harbour.example what is it?", "what is it?"),
        ("@Shoal, what is it?", "what is it?"),
        ("Shoals are fish", "Shoals are fish"),
        ("shoal !status", "!status"),
        ("/stop", "/stop"),
        ("> <@ada:x> quoted", "> <@ada:x> quoted"),
        ("shoal fishing is fun", "shoal fishing is fun"),
    ],
)
def test_the_name_of_the_bot_is_removed_from_a_message(body: str, text: str) -> None:
    assert text_of(body, ME, answers=False) == text


def test_a_leading_name_is_removed_if_the_client_marks_it_as_a_mention() -> None:
    assert text_of("Shoal what is it?", ME, answers=False, named=True) == "what is it?"


def test_a_self_written_quotation_is_the_senders_text() -> None:
    assert text_of("> high at noon\nis that from you?", ME, answers=True) == "> high at noon\nis that from you?"


def test_addresses_that_only_the_formatted_form_has_are_reported() -> None:
    pill = f'<a href="https://matrix.to/#/{ME.user_id}">Shoal</a>'
    marked = (
        f'{pill} read <a href="https://tides.example?a=1&amp;b=2">the <b>table</b></a>, see <a href="https://x.y">x</a>'
    )
    content = EventContent(msgtype="m.text", body="Shoal read the table, see https://x.y", formatted_body=marked)
    text = message_text(MatrixEvent("m.room.message"), content, ME)
    assert text == "read the table (https://tides.example?a=1&b=2), see https://x.y"


def test_quotation_fallbacks_of_old_clients_are_removed() -> None:
    assert text_of("> <@shoal:harbour.example> low\n> at six\n\nwhy?", ME, answers=True) == "why?"
    assert text_of("> <@mallory:x> low\n>\n> obey\n\nwhy?", ME, answers=True) == "why?"


def test_quotation_fallbacks_of_old_clients_are_removed_from_emotes() -> None:
    answered = EventRelation(answered=InReplyTo(event_id="$1"))
    content = EventContent(msgtype="m.emote", body="> <@mallory:x> obey\n\nnods", relation=answered)
    prompt = prompt_of(
        make_thread_id("matrix", "a", "b"),
        MatrixEvent("m.room.message", event_id="$2"),
        content,
        Author("@ada:x", trusted=False),
        ME,
    )
    assert prompt.text == "* nods"


@pytest.mark.parametrize(
    ("content", "addressed"),
    [
        (EventContent(body="hi", mentions=MatrixMentions((ME.user_id,))), True),
        (EventContent(body="Shoal: hi", mentions=MatrixMentions()), False),
        (EventContent(body="Shoal: hi"), True),
        (EventContent(body="I like @shoal:harbour.example"), True),
        (EventContent(body="x", formatted_body=f'<a href="https://matrix.to/#/{ME.user_id}">Shoal</a>'), True),
        (EventContent(body="shoals are fish"), False),
    ],
)
def test_mentions_come_from_the_client_or_from_the_text(content: EventContent, addressed: bool) -> None:
    assert is_addressed(content, ME) is addressed


def test_notices_edits_and_own_messages_are_not_prompts() -> None:
    assert is_from_person(event(), EventContent(msgtype="m.text"), ME.user_id)
    assert not is_from_person(event(), EventContent(msgtype="m.notice"), ME.user_id)
    assert not is_from_person(event(sender=ME.user_id), EventContent(msgtype="m.text"), ME.user_id)
    assert not is_from_person(
        event(), EventContent(msgtype="m.text", relation=EventRelation(rel_type="m.replace")), ME.user_id
    )
    assert not is_from_person(event("m.reaction"), EventContent(msgtype="m.text"), ME.user_id)
    assert is_from_person(event("m.sticker"), EventContent(body="wave"), ME.user_id)


def test_the_caption_of_a_file_is_text_and_its_name_is_not() -> None:
    thread, author = make_thread_id("matrix", "!r", WHOLE), Author("@ada:harbour.example", trusted=False)
    plain = EventContent(msgtype="m.image", body="tide.png")
    captioned = EventContent(msgtype="m.image", body="look at this", filename="tide.png")
    assert prompt_of(thread, event(), plain, author, ME).text == ""
    assert prompt_of(thread, event(), captioned, author, ME).text == "look at this"


def test_a_thread_comes_from_its_root_the_direct_room_or_the_message() -> None:
    within = EventContent(relation=EventRelation(rel_type="m.thread", event_id="$root"))
    assert thread_of("matrix", MatrixLocation("!r", direct=True), event(), within).endswith(":$root")
    assert thread_of("matrix", MatrixLocation("!r", direct=True), event(), EventContent()).endswith(":0")
    assert thread_of("matrix", MatrixLocation("!r"), event(), EventContent()).endswith(":$e")


@given(st.integers())
def test_any_timestamp_can_be_read(milliseconds: int) -> None:
    assert time_of(MatrixEvent("m.room.message", origin_server_ts=milliseconds)).tzinfo is not None


def test_messages_since_the_invitation_are_unseen_and_a_rename_does_not_count() -> None:
    said = [event(event_id=f"${number}") for number in range(4)]
    invited = (said[0], member("invite"), said[1], member("join", "invite"), said[2])
    assert [one.event_id for one in unseen(invited, ME.user_id) if one.type == "m.room.message"] == ["$1", "$2"]
    joined = (said[0], member("join"), said[1])
    assert unseen(joined, ME.user_id) == (said[1],)
    renamed = (said[0], member("join", "join"), said[1])
    assert unseen(renamed, ME.user_id) == renamed


# ---- outgoing ----


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_keys_are_different_transactions(one: str, other: str) -> None:
    assert (transaction_of(one) == transaction_of(other)) == (one == other)


def test_a_question_mentions_people() -> None:
    assert text_content("May I?", BUTTONS)["msgtype"] == "m.text"
    assert text_content("Low.")["msgtype"] == "m.notice"


def test_a_post_goes_to_its_thread_and_replies_to_its_message() -> None:
    assert relation_of(MatrixTarget("!r"), "") == {}
    assert relation_of(MatrixTarget("!r"), "$q") == {"m.relates_to": {"m.in_reply_to": {"event_id": "$q"}}}
    for reply_to, answered, falls_back in (("", "$root", True), ("$root", "$root", True), ("$q", "$q", False)):
        assert relation_of(MatrixTarget("!r", "$root"), reply_to) == {
            "m.relates_to": {
                "rel_type": "m.thread", "event_id": "$root", "is_falling_back": falls_back,
                "m.in_reply_to": {"event_id": answered},
            }
        }  # fmt: skip


@given(st.text(max_size=6000), st.text("*_`[]()>#-\n\\\"'&<潮🦈 a", max_size=6000))
def test_text_within_the_limit_fits_an_event_and_its_edit(any_text: str, marked: str) -> None:
    for markdown in (any_text, marked):
        (piece, *_) = cut(markdown, LIMITS)
        assert rendered_length(piece, LIMITS) <= LIMITS.text_chars_max or len(piece) == 1
        post = OutboundPost(make_thread_id("matrix", "!r", "$root"), "k", piece, buttons=BUTTONS)
        for content in (post_content(post, MatrixTarget("!r", "$root")), edit_content("$e", piece, BUTTONS)):
            # encryption makes the event a third longer
            assert len(msgspec.json.encode(content)) < EVENT_BYTES_MAX * 3 // 4


def test_oversized_html_is_left_out() -> None:
    content = text_content("*a* " * 10_000)
    assert "formatted_body" not in content
    assert content["body"] == "*a* " * 10_000
    assert CONTENT_BYTES_MAX < EVENT_BYTES_MAX


@given(st.text(max_size=20_000))
def test_splitting_keeps_the_whole_text(text: str) -> None:
    assert "".join(cut(text, LIMITS)) == text


PILL = '<a href="https://matrix.to/#/{id}">Shoal</a>'
ME = MatrixBot("@shoal:harbour.example", "Shoal")


@pytest.mark.parametrize(
    ("body", "markup", "named"),
    [
        ("Shoal what now?", PILL.format(id="@shoal:harbour.example"), True),
        ("Shoal what now?", PILL.format(id="%40shoal%3Aharbour.example"), True),
        ("Shoal what now?", PILL.format(id="%40shoal:harbour.example?via=harbour.example"), True),
        ("Shoal what now?", PILL.format(id="&#64;shoal:harbour.example"), True),
        ("Shoal what now?", '<a href="matrix:u/shoal:harbour.example">Shoal</a>', True),
        ("so what now?", PILL.format(id="@shoal:harbour.example.evil"), False),
        ("so what now?", PILL.format(id="%40shoal%3Aharbour.example%3A8448"), False),
        ("so what now?", PILL.format(id="@shoal-two:harbour.example"), False),
        ("so what now?", PILL.format(id="@xshoal:harbour.example"), False),
        ("tell @shoal:harbour.example.", "", True),
        ("tell @shoal:harbour.example, please", "", True),
        ("(@shoal:harbour.example)", "", True),
        ("@shoal:harbour.example: hi", "", True),
        ("tell @shoal:harbour.example.evil", "", False),
        ("tell @shoal:harbour.example-two.org", "", False),
        ("tell @shoal:harbour.examples", "", False),
        ("mail me@shoal:harbour.example", "", False),
        ("@shoal:harbour.example:8448 hi", "", False),
        ("the shoal, it swims", "", False),
    ],
)
def test_the_bot_is_mentioned_by_its_whole_id(body: str, markup: str, named: bool) -> None:
    assert is_addressed(EventContent("m.text", body, markup), ME) == named


@pytest.mark.parametrize(
    ("body", "heard"),
    [
        ("@shoal:harbour.example: hi", "hi"),
        ("@shoal:harbour.example.evil: hi", "@shoal:harbour.example.evil: hi"),
        ("@shoal:harbour.example-two: hi", "@shoal:harbour.example-two: hi"),
        ("@shoal-two: hi", "@shoal-two: hi"),
        ("I saw a shoal, it was big", "I saw a shoal, it was big"),
        ("Shoal: hi", "hi"),
    ],
)
def test_only_the_bots_own_leading_name_is_removed(body: str, heard: str) -> None:
    assert text_of(body, ME, answers=False) == heard
