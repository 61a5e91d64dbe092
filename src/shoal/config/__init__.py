"""The configuration: reads the TOML file and environment variables into frozen records."""

from shoal.config.defaults import default_model, open_catalog, with_ollama
from shoal.config.load import load_config
from shoal.kernel.errors import ConfigError
from shoal.kernel.secret import Secret
from shoal.kernel.settings import Config

__all__ = ["Config", "ConfigError", "Secret", "default_model", "load_config", "open_catalog", "with_ollama"]
