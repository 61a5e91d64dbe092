"""Takes the secrets out of a configuration file, for backups."""

import re
import tomllib
from collections.abc import Iterator

from shoal.config.schema import find
from shoal.config.secret import Secret
from shoal.config.toml import Table, as_list, as_table

_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|credential", re.IGNORECASE)
"""Names under which keys that are not ours (of extensions, or taken out by a #) hold secrets."""
_REMARK = re.compile(r"""^(\s*#.*(?:key|token|secret|password|passwd|credential)\w*\s*=\s*)(["']).+\2""", re.I | re.M)


def without_secrets(text: str) -> str | None:
    """The file with every secret that is written out made empty; the rest stays byte for byte.

    None when that cannot be done for sure: the file is not TOML, or a secret is written with escapes.
    """
    try:
        found = set(_secrets(tomllib.loads(text)))
        for secret in sorted(found, key=len, reverse=True):
            for quote in ('"""', "'''", '"', "'"):
                text = text.replace(f"{quote}{secret}{quote}", '""')
        text = _REMARK.sub(r'\1""', text)
        left = any(_secrets(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return None
    return None if left or any(secret in text for secret in found) else text


def _secrets(value: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The secrets written out anywhere below."""
    table: Table | None = as_table(value)
    items = as_list(value)
    if table is not None:
        for name, inner in table.items():
            yield from _secrets(inner, (*path, name))
    elif items is not None:
        for number, inner in enumerate(items):
            yield from _secrets(inner, (*path, str(number)))
    elif isinstance(value, str) and value and _is_secret(path):
        yield value


def _is_secret(path: tuple[str, ...]) -> bool:
    hint = find(path)
    return hint is Secret if hint is not None else bool(_SECRET_NAME.search(path[-1]))
