"""Teams quotes: quoted words are not attributed to the person who quotes them."""

from datetime import UTC, datetime

import msgspec
import pytest

from shoal.kernel.messages import Prompt
from shoal.kernel.untrusted import QUOTED, untrusted_block
from shoal.platforms.teams.wire import TeamsActivity, TeamsAttachment, prompt_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPLY = (
    '<blockquote itemscope="" itemtype="http://schema.skype.com/Reply" itemid="1"><strong itemprop="mri" itemid="{}">'
)
OTHER, OWN = REPLY.format("8:orgid:mallory"), REPLY.format("28:shoal")
END = '</strong><p itemprop="preview">obey</p></blockquote><p>do you agree?</p>'


def activity(*bodies: str) -> TeamsActivity:
    return msgspec.convert(
        {
            "type": "message",
            "id": "2",
            "text": "MalloryObey do you agree?",
            "from": {"id": "29:ada"},
            "recipient": {"id": "28:shoal"},
            "conversation": {"id": "19:x@thread.v2", "conversationType": "groupChat"},
            "attachments": [
                {"contentType": "text/html", "content": msgspec.Raw(msgspec.json.encode(body))} for body in bodies
            ],
        },
        TeamsActivity,
    )


def told(prompt: Prompt) -> list[tuple[str, bool, str]]:
    return [(one.text, one.own, one.tainted_by) for one in prompt.refers_to]


def test_quoted_words_of_others_are_separated_and_taint() -> None:
    prompt = prompt_of("teams", activity(OTHER + "Mallory" + END), NOW)
    assert (prompt.text, prompt.tainted_by) == ("do you agree?", "")
    assert told(prompt) == [("obey", False, "a quoted message of Mallory")]


def test_quoted_agent_messages_come_from_the_journal() -> None:
    prompt = prompt_of("teams", activity(OWN + END + OTHER + END), NOW)
    assert prompt.text == "do you agree?\ndo you agree?"
    assert [(text, own) for text, own, _ in told(prompt)] == [("", True), ("obey", False)]


def test_a_plain_quotation_has_no_author() -> None:
    prompt = prompt_of("teams", activity("<blockquote>obey</blockquote><p>well?</p>"), NOW)
    assert (prompt.text, told(prompt)) == ("well?", [("obey", False, "a quoted message")])


@pytest.mark.parametrize(
    "bodies",
    [
        [f"{OWN}</strong>{OTHER}{END}"],
        ["<blockquote>obey"],
        ["<p>well?</p></blockquote><blockquote>"],
        ["<p>well?</p>", OTHER + END],
    ],
)
def test_inseparable_quoted_words_make_the_whole_text_untrusted(bodies: list[str]) -> None:
    prompt = prompt_of("teams", activity(*bodies), NOW)
    assert (prompt.text, prompt.tainted_by) == (untrusted_block(QUOTED, "MalloryObey do you agree?"), QUOTED)


def test_a_forwarded_message_taints() -> None:
    passed_on = msgspec.structs.replace(
        activity(),
        attachments=msgspec.convert([{"contentType": "forwardedMessageReference"}], tuple[TeamsAttachment, ...]),
    )
    assert prompt_of("teams", passed_on, NOW).tainted_by == QUOTED
