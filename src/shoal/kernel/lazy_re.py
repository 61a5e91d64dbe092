"""Regular expressions that are compiled on first use. Compiling all of them at import would take a tenth of the startup
time.
"""

import re
from typing import AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
_FIELDS = ("pattern", "flags", "groups", "groupindex")


class _Uncompiled:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> object:
        """Compile the expression and copy its methods to this object, so later calls do not reach this function."""
        pattern, flags = self._source
        compiled = re.compile(pattern, flags)
        vars(self).update({known: getattr(compiled, known) for known in (*_METHODS, *_FIELDS)})
        return getattr(compiled, name)


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but compile on first use.

    An invalid expression raises `re.error` on first use. The result cannot be passed to the functions of `re`.
    """
    return cast(re.Pattern[AnyStr], _Uncompiled(pattern, flags))
