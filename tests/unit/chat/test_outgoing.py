"""What every platform is told with an answer: no previews of links, and nobody but the asker is notified."""

import pytest

from shoal.chat.discord.messages import message_body
from shoal.chat.google_chat.adapter import content_of
from shoal.chat.matrix.wire import text_content
from shoal.chat.slack.send import message_of, rendered
from shoal.domain.ids import make_thread_id
from shoal.domain.posts import OutboundPost


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
def test_slack_calls_no_group(call: str) -> None:
    for text in (call, f"`{call}`", f"[{call}](https://x.example/)", f"# {call}", f"> {call}"):
        assert "<!" not in rendered(text)
    assert rendered("<@U123> <#C123|sea>") == "<@U123> <#C123|sea>"


def test_discord_and_matrix_notify_nobody() -> None:
    body = message_body("@everyone <@&12>")
    assert body["allowed_mentions"] == {"parse": [], "replied_user": False}
    assert body["flags"] == 4
    assert text_content("@room")["m.mentions"] == {}


def test_slack_opens_no_address() -> None:
    sent = message_of(OutboundPost(make_thread_id("slack", "D1", "0"), "k", "https://x.example/"))
    assert (sent["unfurl_links"], sent["unfurl_media"]) == (False, False)
