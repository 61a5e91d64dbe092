"""`@tool` and the registry: typed functions as tools, unique names, and cached selections."""

import json
import threading
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from shoal.kernel.errors import InvalidInput, ToolError
from shoal.kernel.messages import ToolSpec
from shoal.kernel.ports import Tool, ToolContext, ToolOutput
from shoal.kernel.traits import Traits
from shoal.testing.contracts.tool import tool_context
from shoal.tools.functions import tool
from shoal.tools.registry import SELECTIONS_MAX, Registry


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something on the list."""

    name: str
    count: int = 1


@tool(Traits(effect="read", idempotent=True, origin="own"))
def order(
    item: Item,
    size: Literal["small", "large"] = "small",
    note: Annotated[str, msgspec.Meta(description="A wish.", max_length=5)] = "",
) -> dict[str, object]:
    """Order something.

    Args:
        item: What to order.
        size (str): How large.
    """
    return {"item": item.name, "size": size, "note": note, "thread": threading.current_thread().name}


@tool(Traits(origin="own"), name="who_asks")
async def who(context: ToolContext, greeting: Annotated[str, "How to greet."] = "Hello") -> str:
    """Tell who asks."""
    return f"{greeting} {context.asker.user}"


async def result(found: Tool, context: ToolContext, **arguments: object) -> ToolOutput:
    return await found.prepare(json.dumps(arguments), context).run()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return tool_context(tmp_path)


def test_docstring_and_annotations_become_the_schema() -> None:
    assert (order.spec.name, order.spec.description) == ("order", "Order something.")
    assert (order.traits.read_only, order.traits.idempotent) == (True, True)
    schema = json.loads(order.spec.parameters)
    assert schema["required"] == ["item"]
    assert schema["properties"]["size"] == {"enum": ["large", "small"], "default": "small", "description": "How large."}
    assert schema["properties"]["note"]["description"] == "A wish."
    assert schema["$defs"]["Item"]["properties"]["count"] == {"type": "integer", "default": 1}


def test_the_context_is_not_an_argument() -> None:
    assert list(json.loads(who.spec.parameters)["properties"]) == ["greeting"]


async def test_a_plain_function_runs_in_a_thread_and_returns_json(context: ToolContext) -> None:
    output = json.loads((await result(order, context, item={"name": "tea"}, size="large")).text)
    assert output.pop("thread") != threading.current_thread().name
    assert output == {"item": "tea", "size": "large", "note": ""}


async def test_an_async_function_gets_the_context(context: ToolContext) -> None:
    assert (await result(who, context)).text == "Hello u1"


async def test_the_action_contains_all_arguments(context: ToolContext) -> None:
    call = who.prepare('{"greeting": "Hi"}', context)
    assert [action.text for action in call.actions] == ['tool:who_asks:{"greeting":"Hi"}']
    assert who.prepare("{}", context).canonical == who.prepare('{"greeting":"Hello"}', context).canonical


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "`item` is missing"),
        ('{"item": {"name": 3}}', "`item.name` must be text"),
        ('{"item": {"name": "x"}, "note": "too long"}', "`note` must be text of at most 5 characters"),
        ('{"item": {"name": "x"}, "size": "huge"}', "`size` must be"),
        ('{"item"', "not valid JSON"),
    ],
)
def test_wrong_arguments_are_named(context: ToolContext, arguments: str, told: str) -> None:
    with pytest.raises(ToolError) as caught:
        order.prepare(arguments, context)
    assert told in str(caught.value)


def test_a_decorated_function_can_still_be_called() -> None:
    assert order(Item("tea"), note="x")["item"] == "tea"


async def test_a_tool_output_is_returned_unchanged(context: ToolContext) -> None:
    @tool(Traits(origin="own"))
    def failing() -> ToolOutput:
        """Fail on purpose."""
        return ToolOutput("no", is_error=True)

    assert await result(failing, context) == ToolOutput("no", is_error=True)


def test_an_unsupported_function_is_refused() -> None:
    def untyped(value) -> str:
        return value

    def several(*values: str) -> str:
        return str(values)

    def foreign(value: threading.Lock) -> str:
        return str(value)

    for function in (untyped, several, foreign, lambda: ""):
        with pytest.raises(InvalidInput):
            tool(function)
    with pytest.raises(InvalidInput, match="1 to 64 letters"):
        tool(name="has spaces")(several)


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.add(who)
    made.add(order)
    made.add(tool(Traits(offered="by_name"), name="alias")(lambda: ""))
    return made


def shown(_: str) -> bool:
    return False


def test_tools_are_reported_by_name_in_order(registry: Registry) -> None:
    assert [spec.name for spec in registry.offer((), shown).listed] == ["order", "who_asks"]
    assert [spec.name for spec in registry.offer(("who_asks", "alias", "missing"), shown).all] == ["alias", "who_asks"]
    assert [spec.name for spec in registry.offer((), lambda name: name == "order").listed] == ["who_asks"]
    assert registry.names() == ("alias", "order", "who_asks")


def test_a_selection_of_tools_is_cached_until_the_tools_change(registry: Registry) -> None:
    first = registry.offer((), shown)
    assert registry.offer((), shown) is first
    assert registry.offer(("order", "who_asks"), shown) is first
    registry.remove("alias")
    assert registry.offer((), shown) is not first
    assert registry.get("alias") is None
    assert registry.get("order") is order


def test_a_duplicate_name_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidInput, match="order already"):
        registry.add(order)
    registry.remove("order")
    registry.remove("order")
    registry.add(order)


def test_cached_selections_are_bounded(registry: Registry) -> None:
    for number in range(SELECTIONS_MAX + 10):
        registry.add(tool(name=f"t{number}")(lambda: ""))
    first = registry.offer(("t0",), shown)
    for number in range(SELECTIONS_MAX + 10):
        registry.offer((f"t{number}",), shown)
    assert registry.offer(("t0",), shown) is not first


def test_functions_with_the_same_code_differ_by_docstring_defaults_and_annotations() -> None:
    def made(text: str, default: object, kind: type) -> ToolSpec:
        def look(limit=default):
            return limit

        look.__doc__, look.__annotations__ = text, {"limit": kind, "return": str}
        return tool(look).spec

    first = made("Look.", 1, int)
    assert made("Look.", 1, int) == first
    assert made("Look twice.", 1, int).description == "Look twice."
    assert '"default":2' in made("Look.", 2, int).parameters
    assert '"type":"string"' in made("Look.", "", str).parameters
    assert '"default":[]' in made("Look.", [], list).parameters
