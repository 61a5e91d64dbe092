"""After a provider rejects a field, Shoal omits it. This call and the next one succeed."""

import msgspec
import pytest

from shoal.kernel.messages import ModelFailed, ModelRequest, UserMessage
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import build_provider
from shoal.models.http_provider import ATTEMPTS_MAX
from shoal.models.quirks import Quirks, lesson
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import answer
from shoal.testing.model import FakeModel, Refusal, Seen

ASKED = ModelRequest("new-model", "", (UserMessage("hi"),), max_output_tokens=9, temperature=0.3)


def picky(seen: Seen) -> Refusal | str:
    body = msgspec.json.decode(seen.body)
    if "max_tokens" in body:
        return Refusal(
            400, "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
        )
    if "temperature" in body:
        return Refusal(400, "Unsupported value: 'temperature' does not support 0.3 with this model.")
    return f"took {body['max_completion_tokens']}"


async def test_refused_fields_are_learned_once_per_model() -> None:
    fake = FakeModel(script=picky)
    async with fake.serve() as url:
        provider = build_provider("p", ProviderSettings(kind="openai", base_url=f"{url}/v1"), ManualClock(), {})
        assert (await answer(provider, ASKED)).message.text == "took 9"
        assert fake.calls == 3
        await answer(provider, ASKED)
        assert fake.calls == 4
        await answer(provider, msgspec.structs.replace(ASKED, model="other"))
        assert fake.calls == 7
        await provider.close()


async def test_a_server_that_refuses_everything_gets_a_limited_number_of_requests() -> None:
    fake = FakeModel(
        script=lambda seen: Refusal(400, "temperature, stream_options, max_tokens: use max_completion_tokens")
    )
    async with fake.serve() as url:
        provider = build_provider("p", ProviderSettings(kind="openai", base_url=f"{url}/v1"), ManualClock(), {})
        events = [event async for event in provider.stream(ASKED)]
        await provider.close()
    assert isinstance(events[-1], ModelFailed)
    assert events[-1].kind == "invalid_request"
    assert fake.calls <= ATTEMPTS_MAX


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [("Use 'max_completion_tokens' instead of 'max_tokens'. max_tokens: max_completion_tokens", "max_tokens",
      "max_completion_tokens"),
     ("temperature: Extra inputs are not permitted", "temperature", False),
     ("`temperature` is deprecated for this model.", "temperature", False),
     ("Unrecognized request argument supplied: stream_options", "usage_option", False),
     ("Encrypted content is not supported with this model.", "reasoning_items", False)],
)  # fmt: skip
def test_refusal_wordings_are_recognized(words: str, field: str, value: object) -> None:
    changes = lesson(Quirks(), words)
    assert changes[field] == value
    assert lesson(Quirks().changed(changes), words) == {}


def test_other_refusals_teach_nothing() -> None:
    assert lesson(Quirks(), "messages[3].content is malformed") == {}
