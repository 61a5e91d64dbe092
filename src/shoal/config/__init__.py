"""Configuration: TOML file and environment variables, read into frozen records."""

from shoal.config.defaults import default_model
from shoal.config.load import load_config
from shoal.config.records import Config
from shoal.config.secret import Secret
from shoal.domain.errors import ConfigError

__all__ = ["Config", "ConfigError", "Secret", "default_model", "load_config"]
