"""Configured webhooks, and the templates of their messages."""

from typing import TYPE_CHECKING, Self, TypeAlias, Union

import msgspec

from shoal.features.triggers.settings import HookSettings, TriggersSettings
from shoal.kernel import lazy_re
from shoal.kernel.errors import InvalidInput
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.untrusted import UNREADABLE, contained, untrusted_block

if TYPE_CHECKING:
    from shoal.services import Services

Json: TypeAlias = Union[dict[str, "Json"], list["Json"], str, int, float, bool, None]  # noqa: UP007 (names itself)

VALUE_CHARS_MAX = 500
BODY_CHARS_MAX = 10_000
"""Maximum number of characters of the body that `{{ body }}` renders. The rest is replaced with a notice."""

_PLACE = lazy_re.compile(r"\{\{\s*([A-Za-z0-9_.\-]+)\s*\}\}")


class Webhooks(dict[str, HookSettings]):
    """The configured webhooks, by name."""

    @classmethod
    def of(cls, services: "Services") -> Self:
        return cls(services[LiveConfig].current.section(TriggersSettings).webhooks)


def render(template: str, name: str, body: bytes) -> str:
    """Render a webhook's template. `{{ a.b.0 }}` is the value at that path in the JSON body, and `{{ body }}` is the
    complete body. An empty template renders the body.

    Values are untrusted. A value is rendered as short quoted text on one line, and a missing value as `(none)`. The
    body is rendered as an untrusted block, which its content cannot close. Raises InvalidInput if the template needs
    values and the body is not JSON.
    """
    wanted = template.strip() or "{{ body }}"
    places = {match[1] for match in _PLACE.finditer(wanted)} - {"body"}
    content: Json = None
    if places:
        try:
            content = msgspec.json.decode(body)
        except UNREADABLE:
            raise InvalidInput(f"The template for webhook {name!r} needs a JSON body.") from None
    filled: dict[str, str] = {}
    for place in places:
        value = _at(content, place.split("."))
        shown = msgspec.json.encode(value).decode()
        shown = shown if len(shown) <= VALUE_CHARS_MAX else f"{shown[: VALUE_CHARS_MAX - 1]}…"
        filled[place] = "(none)" if value is None else contained(shown)
    text = body.decode("utf-8", "replace")
    if len(text) > BODY_CHARS_MAX:
        text = f"{text[:BODY_CHARS_MAX]}\n[… {len(text) - BODY_CHARS_MAX} characters left out …]"
    filled["body"] = untrusted_block(f"webhook {name}", text)
    return _PLACE.sub(lambda match: filled[match[1]], wanted)


def _at(content: Json, path: list[str]) -> Json:
    for key in path:
        match content:
            case dict():
                content = content.get(key)
            case list() if key.isdecimal() and int(key) < len(content):
                content = content[int(key)]
            case _:
                return None
    return content
