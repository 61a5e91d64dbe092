"""Schema errors name the key and the allowed values."""

import tomllib
from datetime import datetime
from typing import Annotated, Literal

import msgspec
import pytest

from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import BAD_TOML


class Berth(msgspec.Struct, forbid_unknown_fields=True):
    length: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1


class Booking(msgspec.Struct, forbid_unknown_fields=True):
    listen: Literal["all", "named"]
    name: Annotated[str, msgspec.Meta(pattern="^[a-z]$", description="a small letter")] = "a"
    berths: list[Berth] = []
    other: Berth | None = None
    about: Annotated[str, msgspec.Meta(max_length=8)] = ""
    at: datetime | None = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"listen": "bogus"}, '`listen` must be "all" or "named", not \'bogus\''),
        ({"listen": "all", "name": "A"}, "`name` must be a small letter"),
        ({"listen": "all", "berths": [{"length": 9}]}, "`berths[0].length` must be a whole number from 1 to 5"),
        ({"listen": "all", "other": {"size": 1}}, "`size` in `other` is not known. Known fields: length"),
        ({"listen": "all", "other": 3}, "`other` must be an object"),
        ({"colour": 1, "listen": "all"}, "`colour` is not known. Known fields: listen, name, berths, other, about, at"),
        ({}, "`listen` is missing"),
        ([], "it must be an object"),
        ({"listen": "all", "about": "x" * 9}, "`about` must be text of at most 8 characters"),
        ({"listen": "all", "at": "noon"}, "`at` has the wrong format"),
    ],
)
def test_an_error_lists_the_allowed_values(given: object, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, Booking)
    assert refusal(refused.value, Booking) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[budget]\na=1\n[budget]\n", "the table [budget] is defined twice. Put all its keys under one table header"),
        ("[a.b]\n[a]\nb.c=1", "the table [a.b] is defined twice. Put all its keys under one table header"),
        ("a=1\na=2", "a key is defined twice, or is both a value and a table"),
        ("x={a=1,a=2}", "the key a is defined twice"),
        ("x = " + "1" * 5000, "a number has too many digits"),
        ("x = yes", "a value is missing, or is text without quotes"),
        ('x = "a', "the closing quotes of a string are missing"),
        ("x='''a", "the closing quotes of a string are missing"),
        ("x = 'a\n'", "a string has no closing quote on its line, or contains a control character"),
    ],
)
def test_a_toml_error_is_free_of_python_terms(text: str, said: str) -> None:
    with pytest.raises(BAD_TOML) as raised:
        tomllib.loads(text)
    assert refusal(raised.value).endswith(f": {said}")
