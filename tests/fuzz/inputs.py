"""Random input: damaged bytes, damaged JSON, and texts with characters that tend to break parsers."""

import json
import random
from collections.abc import Sequence
from typing import TypeAlias, cast

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

NESTED = 3000
_PIECES = [
    "", " ", "\n", "\r\n", "\t", "\0", "\x1b[2J", "\x7f", "\x85", "\xa0", "é", "漢", "😀", "\u200b",
    "\u202e", "\u2028", "\ufeff", "\ud800", "a", "Z", "0", "-1", "1e999", "9" * 30, "'", '"', "`", "```", "~~~",
    "\\", "/", "../", "%2e", "%00", ":", ";", "#", "# ", "- ", "[", "]", "(", ")", "{", "}", "{{ a.b }}", "<",
    ">", "</untrusted>", "<untrusted>", "<b>", "&lt;", "*", "**", "_", "__", "~~", "|", "||", "|-|", "!", "!(",
    "[a](b)", "javascript:", "http://x", "data:", "true", "null", "=", "[[x]]", "---", "...", "@", "@me",
    "/cmd", ",", ".", "\v", "İ", "ß", "x" * 300,
]  # fmt: skip


def any_text(source: random.Random, pieces_max: int = 12, *, surrogates: bool = False) -> str:
    text = "".join(source.choice(_PIECES) for _ in range(source.randint(0, pieces_max)))
    return text if surrogates else text.replace("\ud800", "")


def any_json(source: random.Random, depth: int = 3) -> Json:
    kind = source.randrange(9 if depth else 7)
    match kind:
        case 0:
            return None
        case 1:
            return source.random() < 0.5
        case 2:
            return source.choice([0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, source.randrange(1000)])
        case 3:
            return source.choice([0.0, -0.5, 1e308, 1e-9])
        case 7:
            return [any_json(source, depth - 1) for _ in range(source.randint(0, 3))]
        case 8:
            return {any_text(source, 2): any_json(source, depth - 1) for _ in range(source.randint(0, 3))}
        case _:
            return any_text(source, 4)


def damaged_json(source: random.Random, value: Json) -> Json:
    copy = cast("Json", json.loads(json.dumps(value)))
    for _ in range(source.randint(1, 2)):
        copy = _damaged_once(source, copy)
    return copy


def _damaged_once(source: random.Random, value: Json) -> Json:
    match value:
        case dict() if value and source.random() < 0.9:
            key = source.choice(sorted(value))
            if source.random() < 0.15:
                del value[key]
            elif source.random() < 0.1:
                value[any_text(source, 2)] = value[key]
            else:
                value[key] = _damaged_once(source, value[key])
            return value
        case list() if value and source.random() < 0.9:
            at = source.randrange(len(value))
            if source.random() < 0.15:
                value.append(value[at])
            else:
                value[at] = _damaged_once(source, value[at])
            return value
        case str() if source.random() < 0.6:
            at = source.randint(0, len(value))
            return value[:at] + any_text(source, 3) + value[at:]
        case _:
            return any_json(source)


def damaged(source: random.Random, content: bytes) -> bytes:
    for _ in range(source.randint(1, 4)):
        at, other = source.randint(0, len(content)), source.randint(0, len(content))
        first, last = min(at, other), max(at, other)
        match source.randrange(5):
            case 0:
                content = content[:at] + bytes([source.randrange(256)]) + content[at + 1 :]
            case 1:
                content = content[:first] + content[min(last, first + 20) :]
            case 2:
                content = content[:at] + content[first : min(last, first + 40)] + content[at:]
            case 3:
                content = content[:at] + any_text(source, 2).encode() + content[at:]
            case _:
                content = content[:at]
    return content


def json_bytes(source: random.Random, samples: Sequence[Json]) -> bytes:
    value = source.choice(samples)
    chance = source.random()
    if chance < 0.6:
        return json.dumps(damaged_json(source, value)).encode()
    if chance < 0.9:
        return damaged(source, json.dumps(value).encode())
    if chance < 0.97:
        return json.dumps(any_json(source)).encode()
    content = json.dumps(value).encode()
    return content[:-1] + b',"deep":' + b"[" * NESTED + (b"]" * NESTED + b"}" if chance < 0.99 else b"")
