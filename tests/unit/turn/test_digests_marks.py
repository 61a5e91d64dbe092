"""A request's mark names every digest that changed since the previous request, and no other."""

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kernel.journals import PERSON, number

from shoal.kernel.events import AssistantSaid, RequestMark, TurnStarted, UserSaid
from shoal.kernel.messages import ModelRequest
from shoal.kernel.transcript import Transcript
from shoal.turn.digests import RequestDigests, digest_of, options_of

ASKED = st.tuples(*(st.sampled_from("ab") for _ in range(3)))


@given(st.lists(ASKED, min_size=1, max_size=6))
def test_a_mark_names_the_changes_since_the_last_request(requests: list[tuple[str, str, str]]) -> None:
    digests, told = RequestDigests(), ("", "", "")
    transcript = Transcript()
    for event in number(TurnStarted("main", "m"), UserSaid("hi", PERSON)):
        transcript.add(event)
    for system, tools, model in requests:
        request = ModelRequest(model, system, tuple(entry.message for entry in transcript.entries))
        now = digest_of(system.encode()), tools, options_of(model, request.max_output_tokens, "auto", None)
        mark = digests.mark(request, system, tools, transcript, None, 0)
        assert (mark.system, mark.tools, mark.options) == tuple(
            one if one != before else "" for one, before in zip(now, told, strict=True)
        )
        assert len(mark.added) == (told == ("", "", ""))
        digests.note(AssistantSaid("hi", asked=mark))
        told = now


def test_an_answer_without_a_mark_changes_nothing() -> None:
    digests, request, transcript = RequestDigests(), ModelRequest("m", "s", ()), Transcript()
    digests.note(AssistantSaid("hi", asked=digests.mark(request, "s", "t", transcript, None, 0)))
    digests.note(AssistantSaid("an old one"))
    mark = digests.mark(request, "s", "t", transcript, None, 0)
    assert mark == RequestMark(after=0, count=0, digest=mark.digest)
