"""From a provider's settings to the provider: which wire, which address, which key. Loads only the wires in use."""

from collections.abc import Mapping
from functools import partial

import msgspec

from shoal.domain.clock import Clock
from shoal.domain.errors import ConfigError
from shoal.domain.ports import Provider
from shoal.providers.http import Timeouts, make_client
from shoal.providers.keys import Key, KeySource
from shoal.providers.service import HttpProvider, Keys
from shoal.providers.table import BASE_URLS, quirks_of, server_row
from shoal.providers.wire import Wire


class ProviderSettings(msgspec.Struct, frozen=True):
    """One provider of the configuration. `models` are offered beside those it lists; `headers` go with every request.

    `model_file` is for kind `local` alone: the GGUF file.
    """

    name: str
    kind: str
    base_url: str = ""
    key: KeySource = KeySource()
    models: tuple[str, ...] = ()
    headers: tuple[tuple[str, KeySource], ...] = ()
    timeouts: Timeouts = Timeouts()
    model_file: str = ""

    @property
    def address(self) -> str:
        """The base address, the kind's own when none is set; empty for what has none."""
        address = (self.base_url or BASE_URLS.get(self.kind, "")).rstrip("/")
        return address.removesuffix("/v1") if self.kind == "anthropic" else address


def build_provider(settings: ProviderSettings, clock: Clock, environ: Mapping[str, str]) -> Provider:
    """Make the provider; nothing is opened. Raises ConfigError for an unknown kind."""
    if settings.kind == "local":
        from shoal.providers.local import LocalProvider

        return LocalProvider(
            settings.name, settings.model_file, clock=clock, timeouts=settings.timeouts, environ=environ
        )
    wire = _wire(settings)
    http = make_client(settings.address, settings.name, settings.timeouts, environ)
    headers = tuple(
        (name.lower().encode(), Key(source, settings.name, environ, clock)) for name, source in settings.headers
    )
    keys = Keys(Key(settings.key, settings.name, environ, clock), headers)
    return HttpProvider(settings.name, wire, http, keys, clock=clock, quirks_of=partial(quirks_of, settings.address))


def _wire(settings: ProviderSettings) -> Wire:
    match settings.kind:
        case "openai":
            from shoal.providers.openai import OpenAiWire

            return OpenAiWire(reasoning_back=server_row(settings.address).reasoning_back)
        case "openai-responses":
            from shoal.providers.openai_responses import ResponsesWire

            return ResponsesWire()
        case "anthropic":
            from shoal.providers.anthropic import AnthropicWire

            return AnthropicWire()
        case "gemini":
            from shoal.providers.gemini import GeminiWire

            return GeminiWire()
        case _:
            raise ConfigError(
                [f"providers.{settings.name}.kind is {settings.kind!r}; allowed: {', '.join(BASE_URLS)}, local."]
            )
