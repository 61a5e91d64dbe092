"""The provider contract over each adapter and over the fake."""

import json

import pytest

from shoal.kernel.ids import CallId
from shoal.kernel.messages import MORE_TOOLS, AssistantMessage, ToolCall, ToolMessage, ToolSpec, UserMessage
from shoal.kernel.ports import Provider
from shoal.kernel.secret import Secret
from shoal.kernel.settings import ProviderSettings
from shoal.models.anthropic import AnthropicMessages
from shoal.models.api_protocol import ApiProtocol
from shoal.models.catalog import build_provider
from shoal.models.http_provider import ApiKey, HttpProvider
from shoal.models.openai import OpenAiResponses
from shoal.models.quirks import ProviderQuirks, QuirkMemory, Quirks
from shoal.net.http import make_client
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import HttpProviderContract, ProviderContract, Stage, answer, request
from shoal.testing.model import Call, FakeModel, Refusal, Reply
from shoal.testing.model.tokens import MARK


def build(kind: str, url: str, key: str, idle_seconds: float) -> Provider:
    settings = ProviderSettings(kind=kind, base_url=url, api_key=Secret("value", key), timeout_seconds=idle_seconds)
    return build_provider("mine", settings, ManualClock(), {})


class TestOpenAi(HttpProviderContract):
    kind = "openai"

    def build(self, url: str, *, key: str, idle_seconds: float) -> Provider:
        return build(self.kind, f"{url}/v1", key, idle_seconds)


class TestOpenAiResponses(HttpProviderContract):
    kind = "openai-responses"

    def build(self, url: str, *, key: str, idle_seconds: float) -> Provider:
        return build(self.kind, f"{url}/v1", key, idle_seconds)


class TestAnthropic(HttpProviderContract):
    kind = "anthropic"

    def build(self, url: str, *, key: str, idle_seconds: float) -> Provider:
        return build(self.kind, url, key, idle_seconds)


class TestGemini(HttpProviderContract):
    kind = "gemini"

    def build(self, url: str, *, key: str, idle_seconds: float) -> Provider:
        return build(self.kind, f"{url}/v1beta", key, idle_seconds)


class TestFakeModelInProcess(ProviderContract):
    @pytest.fixture
    def stage(self) -> Stage:
        fake = FakeModel()
        return Stage(fake, fake)


FIND = ToolSpec(MORE_TOOLS, "Find further tools.", '{"type":"object","properties":{}}')
FOUND = (ToolSpec("weigh", "Weigh the boat.", '{"type":"object","properties":{"grams":{"type":"integer"}}}'),)
NATIVE = ((OpenAiResponses(), "/v1"), (AnthropicMessages(), ""))


@pytest.mark.parametrize(("protocol", "path"), NATIVE, ids=lambda one: getattr(one, "kind", ""))
@pytest.mark.parametrize("refused", [False, True])
async def test_tool_search_uses_the_providers_own_format(protocol: ApiProtocol, path: str, refused: bool) -> None:
    """The fake validates the request format and offers the tool only after a search returned it. Models without
    native support get the definition as text.
    """
    fake = FakeModel()
    if refused:
        fake.add(Refusal(400, "tools.1.defer_loading: tool_search is not supported by this model"))
    fake.add(Reply(calls=(Call(MORE_TOOLS, '{"find":"weigh"}'),)), Reply(calls=(Call("weigh", '{"grams":1}'),)), "1 g")
    async with fake.serve() as url:
        http, key = make_client(f"{url}{path}", "p", 30.0, {}), ApiKey(Secret("value", "k"), "p", ManualClock())
        memory = QuirkMemory(None, ManualClock())
        searching = ProviderQuirks("p", "", lambda address, model: Quirks(tool_search=True), memory)
        provider = HttpProvider("p", protocol, http, key, clock=ManualClock(), quirks=searching)
        asked = UserMessage("how heavy is it?")
        first = (await answer(provider, request(asked, tools=(FIND,)))).message
        assert [(call.name, call.arguments) for call in first.tool_calls] == [(MORE_TOOLS, '{"find":"weigh"}')]
        text = f"Found: weigh.\n{FOUND[0].definition}"
        result = ToolMessage(first.tool_calls[0].id, MORE_TOOLS, text, found=FOUND)
        second = (await answer(provider, request(asked, first, result, tools=(FIND,)))).message
        assert [call.name for call in second.tool_calls] == ["weigh"]
        weighed = ToolMessage(second.tool_calls[0].id, "weigh", "1")
        assert (
            await answer(provider, request(asked, first, result, second, weighed, tools=(FIND,)))
        ).message.text == "1 g"
        await provider.close()
    sent = fake.log[-1]
    assert ("weigh" in sent.tools) is not refused
    assert (FOUND[0].definition in sent.body.decode().replace("\\", "")) is refused
    prompts = [request.prompt.replace(MARK, b"") for request in fake.log][refused:]
    assert prompts[1].startswith(prompts[0].rstrip(b"]}"))


async def test_wrapped_calls_stay_wrapped_in_the_history() -> None:
    """The history contains the call as the model wrote it, not the call that ran."""
    fake = FakeModel()
    fake.add("Done.")
    called = ToolCall(CallId("c1"), "weigh", '{"grams":1}', wrapped=True)
    async with fake.serve() as url:
        for kind, path in (("openai", "/v1"), ("openai-responses", "/v1"), ("anthropic", ""), ("gemini", "/v1beta")):
            fake.add("Done.")
            provider = build(kind, f"{url}{path}", "k", 30.0)
            messages = (
                UserMessage("go"),
                AssistantMessage("", (called,)),
                ToolMessage(called.id, "weigh", "1", wrapped=True),
            )
            await answer(provider, request(*messages, tools=(FIND,), key=kind))
            (call,) = fake.log[-1].messages[1].calls
            assert (call.name, json.loads(call.arguments)) == (MORE_TOOLS, {"call": "weigh", "arguments": {"grams": 1}})
            await provider.close()
