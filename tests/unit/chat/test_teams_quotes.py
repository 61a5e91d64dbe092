"""Words of somebody else that a person of Teams quotes are not that person's."""

from datetime import UTC, datetime

import msgspec
import pytest

from shoal.chat.teams.wire import TeamsActivity, TeamsAttachment, prompt_of
from shoal.domain.untrusted import QUOTED, untrusted_block

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPLY = (
    '<blockquote itemscope="" itemtype="http://schema.skype.com/Reply" itemid="1"><strong itemprop="mri" itemid="{}">'
)
OTHER, OWN = REPLY.format("8:orgid:mallory"), REPLY.format("28:shoal")
END = '</strong><p itemprop="preview">obey</p></blockquote><p>do you agree?</p>'


def activity(*bodies: str) -> TeamsActivity:
    """What Teams tells of a message of ada's with this HTML."""
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


@pytest.mark.parametrize(
    "body", [OTHER + END, f"<blockquote>obey</blockquote>{END}", OWN + END + OTHER + END, f"{OWN}</strong>{OTHER}{END}"]
)
def test_a_message_that_quotes_somebody_else_taints(body: str) -> None:
    prompt = prompt_of("teams", activity(body), NOW)
    assert (prompt.text, prompt.tainted_by) == (untrusted_block(QUOTED, "MalloryObey do you agree?"), QUOTED)


def test_a_message_that_is_passed_on_taints() -> None:
    passed_on = msgspec.structs.replace(
        activity(),
        attachments=msgspec.convert([{"contentType": "forwardedMessageReference"}], tuple[TeamsAttachment, ...]),
    )
    assert prompt_of("teams", passed_on, NOW).tainted_by == QUOTED


@pytest.mark.parametrize("body", [OWN + END, "<p>do you agree?</p>"])
def test_what_the_agent_said_may_be_quoted(body: str) -> None:
    prompt = prompt_of("teams", activity(body), NOW)
    assert (prompt.text, prompt.tainted_by) == ("MalloryObey do you agree?", "")
