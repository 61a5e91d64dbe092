"""Configuration: TOML file and environment variables, read into frozen records."""

from shoal.config.defaults import default_model, open_catalog, with_ollama
from shoal.config.load import load_config
from shoal.domain.errors import ConfigError
from shoal.domain.secret import Secret
from shoal.domain.settings import Config

__all__ = ["Config", "ConfigError", "Secret", "default_model", "load_config", "open_catalog", "with_ollama"]
