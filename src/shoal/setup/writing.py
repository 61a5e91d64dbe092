"""Writing of settings: keys to shoal.toml, and secrets to separate files."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from shoal.config import Config, load_config
from shoal.config.load import PREFIX, SEPARATOR, parse_variable
from shoal.kernel.errors import ConfigError
from shoal.kernel.home import Home
from shoal.kernel.regular_files import read_regular_text
from shoal.kernel.traits import NO_TOOLS
from shoal.kernel.untrusted import decode_toml
from shoal.permissions.profiles import Profiles
from shoal.text.toml_edit import CannotEdit, Value, literal, with_value, without_key


def value_of(key: str, text: str) -> Value:
    """Parse a value for a key such as `web.port`, in the format of environment variables."""
    value = parse_variable(tuple(key.split(".")), text)
    return text if isinstance(value, dict) else cast("Value", value)


def write_settings(home: Home, values: Mapping[str, Value]) -> None:
    """Set keys of shoal.toml, such as `web.port`. The rest of the file does not change.

    Raises ConfigError if the result is invalid, a key cannot be placed reliably, or an environment variable would
    override it. Raises OSError. Nothing is changed in these cases.
    """
    for key in values:
        variable = f"{PREFIX}{key.replace('.', SEPARATOR).upper()}"
        if variable in os.environ:
            raise ConfigError([f"The environment variable {variable} overrides {key} in the file. Unset it first."])
    load_config(home.root, os.environ, values)
    file = home.config_file.resolve()
    text = read_regular_text(file) if file.exists() else ""
    for key, value in values.items():
        try:
            text = with_value(text, tuple(key.split(".")), value)
        except CannotEdit as error:
            raise ConfigError([f"{error} Add {key} = {literal(value)} to {file} yourself."]) from error
    write_private(file, text)


def write_section(home: Home, section: str, edit: Callable[[str], str]) -> Config:
    """Change one section of shoal.toml with `edit`, which receives and returns the file's text. Return the new
    configuration.

    Raises ConfigError if the result is invalid, `edit` cannot change the file reliably, or an environment variable
    overrides the section. Raises OSError and the errors of `edit`. Nothing is changed in these cases.
    """
    prefix = f"{PREFIX}{section.upper()}{SEPARATOR}"
    if variable := next((name for name in os.environ if name.startswith(prefix)), ""):
        raise ConfigError([f"The environment variable {variable} overrides the file. Unset it first."])
    file = home.config_file.resolve()
    try:
        text = edit(read_regular_text(file) if file.exists() else "")
    except CannotEdit as error:
        raise ConfigError([f"{error} Edit {file} yourself."]) from error
    config = load_config(home.root, os.environ, {section: decode_toml(text).get(section, {})})
    Profiles(NO_TOOLS, config.permissions.profiles, config.permissions.overrides)
    write_private(file, text)
    return config


def keep_secret(home: Home, key: str, value: str) -> Value:
    """Write a secret to its own private file. Return the configuration value that refers to the file."""
    home.secrets.mkdir(mode=0o700, exist_ok=True)
    write_private(home.secrets / key, f"{value}\n")
    return {"file": str((home.secrets / key).relative_to(home.root))}


def write_with_secrets(home: Home, values: Mapping[str, Value], secrets: Mapping[str, str]) -> None:
    """Write keys to shoal.toml, and secrets to separate files.

    Raises ConfigError and OSError as `write_settings` does. Nothing is changed in these cases.
    """
    before = {key: read_regular_text(home.secrets / key) for key in secrets if (home.secrets / key).exists()}
    try:
        write_settings(home, {**values, **{key: keep_secret(home, key, value) for key, value in secrets.items()}})
    except BaseException:
        for key in secrets:
            if key in before:
                write_private(home.secrets / key, before[key])
            else:
                (home.secrets / key).unlink(missing_ok=True)
        raise


def without_table(home: Home, path: tuple[str, ...]) -> None:
    """Remove a table and its subtables from shoal.toml. Raises ConfigError if the table cannot be removed reliably."""
    file = home.config_file.resolve()
    try:
        text = without_key(read_regular_text(file), path)
    except CannotEdit as error:
        raise ConfigError([f"{error} Remove the table from {file} yourself."]) from error
    write_private(file, text)


def write_private(file: Path, text: str) -> None:
    """Replace a file atomically with one that only its owner can read. Raises OSError."""
    temporary = file.with_name(f".{file.name}.new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)


def written(home: Home) -> dict[str, object]:
    """Return the value of each key in shoal.toml and the content of each secret file, by display name."""
    keys: dict[str, object] = {}

    def read(table: Mapping[str, object], prefix: str) -> None:
        for name, value in table.items():
            if isinstance(value, dict) and name != "prices" and set(cast("dict[str, object]", value)) != {"file"}:
                read(cast("dict[str, object]", value), f"{prefix}{name}.")
            else:
                keys[f"{home.config_file}: {prefix}{name}"] = value

    if home.config_file.is_file():
        read(decode_toml(read_regular_text(home.config_file)), "")
    secrets = sorted(home.secrets.iterdir()) if home.secrets.is_dir() else []
    return {**{str(file): read_regular_text(file) for file in secrets if file.is_file()}, **keys}
