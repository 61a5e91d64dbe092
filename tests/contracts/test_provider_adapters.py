"""The provider contract over every adapter, and over the fake itself."""

import pytest

from shoal.domain.ports import Provider
from shoal.domain.secret import Secret
from shoal.domain.settings import ProviderSettings
from shoal.providers.catalog import build_provider
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.provider import HttpProviderContract, ProviderContract, Stage
from shoal.testing.model import FakeModel


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
