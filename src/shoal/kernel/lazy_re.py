"""Regular expressions compiled on first use. Compiling them all at import would take a tenth of the start time."""

import re
from typing import AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
_FIELDS = ("pattern", "flags", "groups", "groupindex")


class _Uncompiled:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> object:
        """Compile the expression once, and copy its methods to this object."""
        pattern, flags = self._source
        compiled = re.compile(pattern, flags)
        vars(self).update({known: getattr(compiled, known) for known in (*_METHODS, *_FIELDS)})
        return getattr(compiled, name)


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but compile on first use.

    An invalid expression raises `re.error` on first use. The functions of `re` do not accept the result.
    """
    return cast(re.Pattern[AnyStr], _Uncompiled(pattern, flags))
