"""Keys, types and allowed values of the configuration, derived from the settings records."""

import re
import types
from functools import cache
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeGuard, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.kernel.secret import Secret
from shoal.kernel.section import URL, URL_OR_EMPTY
from shoal.kernel.settings import Config
from shoal.kernel.settings_platforms import PlatformsSettings

Hint: TypeAlias = object
"""A type annotation, which the functions below inspect."""

UNSETTABLE = ((Config, "home"), (PlatformsSettings, "accounts"))


class Key(NamedTuple):
    """A key of a section. `hint` is its type, including limits."""

    name: str
    hint: Hint
    required: bool


@cache
def keys(section: type[msgspec.Struct]) -> dict[str, Key]:
    """Return the keys that can be set in a section, in the order of the record's fields."""
    hints = get_type_hints(section, include_extras=True)
    return {
        field.name: Key(field.name, hints[field.name], field.required)
        for field in msgspec.structs.fields(section)
        if not any(issubclass(section, owner) and field.name == name for owner, name in UNSETTABLE)
    }


def bare(hint: Hint) -> Hint:
    """Return a type without its limits."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def is_section(hint: Hint) -> TypeGuard[type[msgspec.Struct]]:
    """Return True if a type is a table with fixed keys."""
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def table_of(hint: Hint) -> Hint | None:
    """Return the value type of a table with free keys, or None for any other type."""
    return get_args(hint)[1] if get_origin(hint) is dict else None


def list_of(hint: Hint) -> Hint | None:
    """Return the item type of a list, or None for any other type."""
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def choices(hint: Hint) -> tuple[Hint, ...]:
    """Return the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def takes_text(hint: Hint) -> bool:
    kinds = [bare(choice) for choice in choices(bare(hint))]
    return any(kind is str or kind is Secret or get_origin(kind) is Literal for kind in kinds)


def find(root: Hint, path: tuple[str, ...]) -> Hint | None:
    """Return the type of the key at a path, or None if the key does not exist.

    In a list of tables, such as several accounts of a platform, a number in the path selects one of them.
    """
    hint = root
    for name in path:
        entry = list_of(bare(hint))
        if is_section(entry):
            hint = entry
            if name.isdigit():
                continue
        plain = bare(hint)
        if is_section(plain):
            key = keys(plain).get(name)
            hint = key.hint if key else None
        else:
            hint = table_of(plain)
        if hint is None:
            return None
    return hint


def refusal(error: Exception, kind: Hint = object, *, table: str = "an object") -> str:
    """Describe a decoding error as a sentence without a final period.

    Names the key, its value and the allowed values, or the position of invalid JSON or TOML. `table` is the name for a
    value with keys, such as "an object".
    """
    if not isinstance(error, msgspec.ValidationError):
        return _unreadable(error)
    message, _, path = str(error).partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    hint: Hint | None = kind
    for name, entry in re.findall(r"([^.\[\]]+)|(\[[^\[\]]*+\])", path):
        options = [bare(choice) for choice in choices(bare(hint))]
        section = next((option for option in options if is_section(option)), None)
        within = next((get_args(option)[-1] for option in options if get_origin(option) in (list, dict)), None)
        within = within or next((list_of(option) for option in options if list_of(option)), None)
        key = keys(section).get(name) if section is not None else None
        hint = within if entry else key.hint if key else None
    what = f"`{path}`" if path else "it"
    if field := re.search(r"(required|unknown) field (`.+`)", message):
        inside = f"{field[2]} in `{path}`" if path else field[2]
        sections = [section for section in map(bare, choices(bare(hint))) if is_section(section)]
        known = ", ".join(key for section in sections for key in keys(section))
        if field[1] == "required":
            return f"{inside} is missing"
        return f"{inside} is not known{f'. Known fields: {known}' if known else ''}"
    if hint is None or allowed(hint) == "a value":
        if value := re.fullmatch(r"Invalid enum value (.+)", message):
            return f"{what} cannot be {value[1]}"
        named = re.fullmatch(r"Expected `([^`]++)`((?:[^,]|,(?! got `))*+)(?:, got `(.+)`)?", message)
        if named is None:
            return f"{what} has the wrong format"
        wanted = ", or ".join(_TYPES.get(type_name, type_name) for type_name in named[1].split(" | "))
        return f"{what} must be {wanted}{named[2]}{f', not {_TYPES.get(named[3], named[3])}' if named[3] else ''}"
    if allowed(hint) == "a table":
        return f"{what} must be {table}"
    value = message.partition("value ")[2]
    return f"{what} must be {allowed(hint)}{f', not {value}' if value else ''}"


def _unreadable(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return (
            f"byte {error.start} is not valid UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else "it is not UTF-8 text"
        )
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, msgspec.DecodeError):  # from tomllib
        what, _, place = str(error).partition(" (at ")
        at = f" at {place.rstrip(')')}" if place else ""
        return f"it is not valid TOML{at}: {_toml_problem(what)}"
    match = re.search(r"\(byte (\d+)\)", str(error))  # msgspec's error for invalid JSON
    return f"it is not valid JSON at byte {match[1]}" if match else "it is not valid JSON: the text is incomplete"


_TOML_PROBLEMS = (
    (r"Cannot (?:declare \((.+)\) twice|redefine namespace \((.+)\)|mutate immutable namespace \((.+)\))",
     "the table [{}] is defined twice. Put all its keys under one table header"),
    (r"Cannot overwrite a value", "a key is defined twice, or is both a value and a table"),
    (r"Duplicate inline table key '(.+)'", "the key {} is defined twice"),
    (r"Exceeds the limit .+", "a number has too many digits"),
    (r"Unescaped '\\' in a string", 'write a backslash in a "string" as \\\\, or put the string in single quotes'),
    (r"Expected newline or end of document after a statement", "unexpected text after a value"),
    (r"Invalid value", "a value is missing, or is text without quotes"),
    (r"Invalid statement|Invalid initial character for a key part", "a line is neither key = value nor a [table]"),
    (r"Expected '=' after a key in a key/value pair", "an = is missing after a key"),
    (r"Expected ['\"]{5}|Unterminated string", "the closing quotes of a string are missing"),
    (r"Found invalid character .+|Illegal character .+", (
        "a string has no closing quote on its line, or contains a control character"
    )),
    (r"Escaped character is not a Unicode scalar value", "a string has an escape for a character that does not exist"),
)  # fmt: skip
"""Patterns for error messages of Python's TOML reader, with plainer replacements."""


def _toml_problem(what: str) -> str:
    for pattern, words in _TOML_PROBLEMS:
        if (match := re.fullmatch(pattern, what, re.DOTALL)) is not None:
            names = next((group for group in match.groups() if group), "")
            return words.replace("{}", ".".join(re.findall(r"'([^']+)'", names)) or names)
    return f"{what[:1].lower()}{what[1:]}"


def allowed(hint: Hint) -> str:
    """Describe the values that a key accepts, for example `a whole number, at least 1`."""
    plain = bare(hint)
    options = [choice for choice in choices(plain) if choice is not types.NoneType]
    if options != [plain]:
        return ", or ".join(allowed(option) for option in options)
    if get_origin(plain) is Literal:
        *most, last = [f'"{value}"' for value in get_args(plain)]
        return f"{', '.join(most)} or {last}" if most else last
    if get_origin(plain) is dict and get_origin(get_args(plain)[0]) is Literal:
        return f"a table with {', '.join(map(str, get_args(get_args(plain)[0])))}, each {allowed(get_args(plain)[1])}"
    entry = list_of(plain)
    if entry is not None and not is_section(entry):
        return f"a list of {'text values' if takes_text(entry) else 'values'}"
    if entry is not None or is_section(plain) or table_of(plain) is not None:
        return "a table" if entry is None else "a table, or several with [[ ]]"
    meta = get_args(hint)[1] if get_origin(hint) is Annotated else None
    if not isinstance(meta, msgspec.Meta):
        return _SIMPLE.get(plain, "a value")
    # A lowercase description is a phrase about the value. Other descriptions are sentences about a tool's argument.
    if meta.description and meta.description[0].islower():
        return meta.description
    if meta.examples is not None:
        return f"{', '.join(map(str, meta.examples))}, or a name from an extension"
    value = _SIMPLE.get(plain, "a value")
    if meta.pattern is not None:
        return value + _PATTERNS.get(meta.pattern, f" that matches {meta.pattern}")
    if meta.max_length is not None:
        value += f" of at most {meta.max_length:,} characters"
    if meta.min_length:
        value += ", not empty"
    if meta.ge is not None and meta.le is not None:
        return f"{value} from {meta.ge:g} to {meta.le:g}"
    lower = f", at least {meta.ge:g}" if meta.ge is not None else f" above {meta.gt:g}" if meta.gt is not None else ""
    upper = f", at most {meta.le:g}" if meta.le is not None else f", below {meta.lt:g}" if meta.lt is not None else ""
    return value + lower + upper


_SIMPLE: dict[Hint, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Secret: 'text, or { env = "NAME" }, { file = "PATH" }, { command = ["program", …] }',
}

_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "nothing",
    "datetime": "a time",
    "date": "a day",
    "bytes": "base64",
}

_PATTERNS = {
    URL: " that starts with http:// or https://",
    URL_OR_EMPTY: " that starts with http:// or https://, or empty",
    r"^$|^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/\S*)?$": " that starts with s3://, or empty",
    r"^$|^wss?://\S+$": " that starts with ws:// or wss://, or empty",
    r"^[a-z0-9][a-z0-9_-]*$": " of lowercase letters, digits, - and _",
}
