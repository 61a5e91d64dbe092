"""Reads stored records, also those of versions that left out what was then a default.

field that is absent     what its absence means
----------------------   ------------------------------------------------------------------------------------------
`author.trusted`         true: false was always written
`caller.tainted_by`      nothing: the calling turn had read nothing untrusted
a process's author       whoever `user` names, trusted unless the process was started under untrusted content, which
                         every message of somebody who is not trusted is
a trigger's author       the owner for an event file; else not known, so that the access rules decide when it fires
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar, Union

import msgspec

_Record = TypeVar("_Record")
_Json: TypeAlias = Union[dict[str, "_Json"], list["_Json"], str, int, float, bool, None]  # noqa: UP007 (names itself)
_Fields: TypeAlias = dict[str, _Json]


def decode_stored(decoder: "msgspec.json.Decoder[_Record]", body: str | bytes) -> _Record:
    """Decode a record of any version. Raises msgspec.MsgspecError for a damaged one."""
    return _decoded(decoder, body, _as_it_is)


def decode_trigger(decoder: "msgspec.json.Decoder[_Record]", body: str | bytes) -> _Record:
    """The same for a trigger."""
    return _decoded(decoder, body, _complete_trigger)


def decode_process(decoder: "msgspec.json.Decoder[_Record]", body: str | bytes) -> _Record:
    """The same for a process."""
    return _decoded(decoder, body, _complete_process)


def _decoded(
    decoder: "msgspec.json.Decoder[_Record]", body: str | bytes, complete: Callable[[_Fields], None]
) -> _Record:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        found: _Json = msgspec.json.decode(body)
        if isinstance(found, dict):
            complete(found)
        _complete_authors(found)
        return msgspec.convert(found, decoder.type)


def _as_it_is(record: _Fields) -> None:
    """Nothing beside its authors was left out."""


def _complete_trigger(record: _Fields) -> None:
    is_event_file = str(record.get("name", "")).startswith("file:") and not record.get("created_by")
    record.setdefault("author", {"id": "shoal"} if is_event_file else None)
    record.setdefault("tainted_by", "")


def _complete_process(record: _Fields) -> None:
    record.setdefault("tainted_by", "")
    record.setdefault("author", {"id": record.get("user") or "shoal", "trusted": not record["tainted_by"]})


def _complete_authors(value: _Json) -> None:
    if isinstance(value, list):
        for one in value:
            _complete_authors(one)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict) and key in _ABSENT:
                name, meaning = _ABSENT[key]
                inner.setdefault(name, meaning)
            _complete_authors(inner)


_ABSENT: dict[str, tuple[str, bool | str]] = {"author": ("trusted", True), "caller": ("tainted_by", "")}
