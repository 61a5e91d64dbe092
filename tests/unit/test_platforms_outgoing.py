"""Options sent with every answer on every platform: no link previews, and notifications only for the asker."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from shoal.kernel.ids import make_thread_id
from shoal.kernel.posts import WRITING, Button, OutboundPost
from shoal.platforms.discord.messages import DiscordTarget, message_body, post_body
from shoal.platforms.google_chat.adapter import content_of
from shoal.platforms.matrix.wire import MatrixTarget, file_content, text_content
from shoal.platforms.slack.send import SlackStreams, change_of, message_of, rendered, sharing_of
from shoal.platforms.teams.adapter import message_of as teams_message
from shoal.testing.clock import ManualClock

if TYPE_CHECKING:
    from shoal.platforms.http import Fields
    from shoal.platforms.slack.wire import SlackApi


@pytest.mark.parametrize(
    "text",
    [
        "<users/all> x",
        "`<users/all>`",
        "```\n<users/all>\n```",
        "[<users/all>](https://x.example/)",
        "<USERS/ALL>",
        "&lt;users/all>",
    ],
)
def test_google_chat_mentions_people_but_never_all(text: str) -> None:
    assert "<users/all>" not in str(content_of(text, ())["text"]).lower()
    assert "<users/7>" in str(content_of("<users/7>", ())["text"])


@pytest.mark.parametrize("call", ["<!channel>", "<!here>", "<!everyone>", "<!subteam^S123>", "<!here|here>"])
def test_slack_mentions_no_group(call: str) -> None:
    for text in (call, f"`{call}`", f"[{call}](https://x.example/)", f"# {call}", f"> {call}"):
        assert "<!" not in rendered(text)
    assert rendered("<@U123> <#C123|sea>") == "<@U123> <#C123|sea>"


def test_discord_and_matrix_notify_no_one() -> None:
    body = message_body("@everyone <@&12>")
    assert body["allowed_mentions"] == {"parse": [], "replied_user": False}
    assert body["flags"] == 4
    assert text_content("@room")["m.mentions"] == {}


def test_slack_posts_unfurl_no_links() -> None:
    sent = message_of(OutboundPost(make_thread_id("slack", "D1", "0"), "k", "https://x.example/"))
    assert (sent["unfurl_links"], sent["unfurl_media"]) == (False, False)


CALLS = ("<users/all>", "@everyone", "@here", "@room", "@all", "<!channel>", "<!here|here>", "<!subteam^S1>", "<@&12>")
PLACES = ("{}", "`{}`", "```\n{}\n```", "[{}](https://x.example/)", "# {}", "> {}", "- **{}**", "| a |\n|---|\n| {} |")


@pytest.mark.parametrize("call", CALLS)
def test_no_platform_mentions_everyone_in_posts_edits_or_cards(call: str) -> None:
    buttons = (Button("Allow", "allow"),)
    for place in PLACES:
        text = place.format(call)
        for given in ((), buttons):
            google = str(content_of(text, given)).lower()
            assert "<users/all>" not in google
            change = change_of("C1", "1.0", text, given)
            post = message_of(OutboundPost(make_thread_id("slack", "D1", "0"), "k", text, buttons=given))
            assert "<!" not in str(change).replace("<!date^0", "")
            assert "<!" not in str(post).replace("<!date^0", "")
            assert change["parse"] == "none", "chat.update would take @here for a call otherwise"
            assert message_body(text, given)["allowed_mentions"] == {"parse": [], "replied_user": False}
            assert text_content(text, given)["m.mentions"] == {}
            assert "entities" not in teams_message(text, {}, given)


@pytest.mark.parametrize("call", CALLS)
def test_no_platform_mentions_everyone_by_a_file(call: str) -> None:
    """Some platforms receive the file's name as text."""
    file = Path(f"{call.replace('/', '')}.txt")
    for place in PLACES:
        post = OutboundPost(make_thread_id("slack", "D1", "0"), "k", place.format(call), file=file)
        assert "<!" not in str(sharing_of(post, {"F1": file})["initial_comment"]).replace("<!date^0", "")
        assert post_body(post, DiscordTarget("1"))["allowed_mentions"] == {"parse": [], "replied_user": False}
        for text in (post.markdown, ""):
            given = msgspec.structs.replace(post, markdown=text)
            assert file_content(given, file.name, MatrixTarget("!r"), "text/plain", b"x")["m.mentions"] == {}
    for note in (f"I cannot send {file.name} (1 bytes) here.", file.name):
        assert "<users/all>" not in str(content_of(note, ())).lower()
        assert "entities" not in teams_message(note, {"all": "29:1"})


def test_teams_mentions_only_people_named_outside_code() -> None:
    people = {"Ann": "29:1"}
    assert "entities" in teams_message("<at>Ann</at>", people)
    for text in ("`<at>Ann</at>`", "```\n<at>Ann</at>\n```", "<at>Bob</at>"):
        message = teams_message(text, people)
        assert "entities" not in message
        assert "<at>" not in str(message["text"])


async def test_a_streamed_preview_mentions_no_group() -> None:
    asked: list[str] = []

    class Api:
        async def call(self, method: str, kind: object, given: "Fields") -> object:
            asked.append(str(given.get("markdown_text", "")))
            return SimpleNamespace(ts="1.0")

    streams = SlackStreams(cast("SlackApi", Api()), ManualClock())
    whole = "See <!channel> and <!here> now"
    await streams.start("D1", "1.0", "U1", "T1", whole[:5] + WRITING)
    for end in range(6, len(whole)):
        await streams.append("1.0", whole[:end] + WRITING)
    assert "<!" not in "".join(asked)
    assert "".join(asked).replace("\u200b", "") == whole[: len(whole) - 1].rstrip()
