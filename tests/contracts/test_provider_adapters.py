"""The provider contract over every adapter, and over the fake itself."""

import pytest

from shoal.domain.ports import Provider
from shoal.providers.build import ProviderSettings, build_provider
from shoal.providers.http import Timeouts
from shoal.providers.keys import KeySource
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import HttpProviderContract, ProviderContract, Stage
from shoal.testing.model import FakeModel


def build(kind: str, url: str, key: str, idle_seconds: float) -> Provider:
    timeouts = Timeouts(connect_seconds=5.0, idle_seconds=idle_seconds)
    settings = ProviderSettings("mine", kind, url, KeySource(key), timeouts=timeouts)
    return build_provider(settings, ManualClock(), {})


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
