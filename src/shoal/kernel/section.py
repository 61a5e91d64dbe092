"""Base class of the configuration's sections, and checks that several sections share."""

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias

import msgspec

URL = r"^https?://([^\s/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?([/?#]\S*)?$"
URL_OR_EMPTY = rf"^$|{URL}"

Problem: TypeAlias = tuple[tuple[str, ...], str]
"""Path of a key, and a description of its problem, worded to follow the key's name."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file.

    Changes to the keys in `live` take effect immediately if they are made on the page or through the API. All other
    changes, and changes in the file, take effect at the next start.
    """

    live: ClassVar[frozenset[str]] = frozenset()

    def problems(self, name: str = "") -> Iterator[Problem]:
        """Yield problems with combinations of keys, which the types cannot express.

        `name` is the name of a repeatable table such as [mcp.NAME].
        """
        yield from ()


def header_problems(headers: Iterable[str]) -> Iterator[Problem]:
    for name in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, 5.1
            yield ("headers",), f"has the invalid name {ascii(name)[:60]}. Use letters, digits and -, as in X-Api-Key"
