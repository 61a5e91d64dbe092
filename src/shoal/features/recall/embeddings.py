"""Create the embedding model that recall.model names."""

from collections.abc import Mapping
from pathlib import Path

from shoal.kernel.clock import Clock
from shoal.kernel.errors import ConfigError
from shoal.kernel.ports import Embeddings
from shoal.kernel.settings import ProviderSettings
from shoal.models.catalog import model_endpoint


def build_embeddings(
    name: str, providers: Mapping[str, ProviderSettings], clock: Clock, environ: Mapping[str, str], folder: Path
) -> Embeddings:
    """Create the model for the setting `recall.model`, which has the form PROVIDER/MODEL. Does no I/O.

    Raises ConfigError if the provider is unknown or does not support embeddings.
    """
    provider, _, model = name.partition("/")
    settings = providers.get(provider)
    if settings is None or not model:
        known = ", ".join(providers) or "none"
        raise ConfigError([f"recall.model must be PROVIDER/MODEL, not {name!r}. Providers: {known}."])
    match settings.kind:
        case "local":
            from shoal.models.local import LocalEmbeddings

            return LocalEmbeddings(provider, model, folder / settings.model_file, settings.timeout_seconds, clock)
        case "openai" | "openai-responses" | "gemini":
            from shoal.models.embeddings import HttpEmbeddings

            return HttpEmbeddings(model_endpoint(provider, model, settings, clock, environ))
        case kind:
            raise ConfigError([f"recall.model is {name!r}, but providers of kind {kind!r} do not support embeddings."])
