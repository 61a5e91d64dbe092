"""Configuration sections that features define."""

from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.features.telemetry.settings import TelemetrySettings
from shoal.kernel.errors import ConfigError
from shoal.kernel.settings import Config


def test_a_features_section_is_read_from_the_file_and_variables(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[telemetry]\nenabled = "off"\n', encoding="utf-8")
    config = load_config(tmp_path, {"SHOAL_TELEMETRY__CONTENT": "true"})
    assert config.section(TelemetrySettings) == TelemetrySettings(enabled="off", content=True)


def test_a_features_section_has_its_defaults_without_a_file(tmp_path: Path) -> None:
    assert Config(home=tmp_path).section(TelemetrySettings) == TelemetrySettings()


def test_an_error_in_a_feature_section_lists_the_allowed_values(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[telemetry]\nenabled = "maybe"\nhome = "x"\n', encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path, {})
    assert 'telemetry.enabled must be "auto", "on" or "off", not "maybe"' in str(refused.value)
    assert "telemetry.home" in str(refused.value)
