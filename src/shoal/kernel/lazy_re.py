"""Regular expressions that are compiled at their first use: compiling all of them takes a tenth of a start."""

import re
from typing import AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
_FIELDS = ("pattern", "flags", "groups", "groupindex")


class _Uncompiled:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> object:
        """Runs once: afterwards the methods of the compiled expression are attributes of this object."""
        pattern, flags = self._source
        compiled = re.compile(pattern, flags)
        vars(self).update({known: getattr(compiled, known) for known in (*_METHODS, *_FIELDS)})
        return getattr(compiled, name)


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but a wrong expression raises `re.error` at its first use. No `re` function accepts it."""
    return cast(re.Pattern[AnyStr], _Uncompiled(pattern, flags))
