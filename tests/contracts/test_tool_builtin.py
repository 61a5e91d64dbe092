"""The tool contract over each built-in tool and over a decorated function."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import jsonschema
import pytest
from tests.known_tools import TRAITS, all_tools, example_context

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Tool, ToolContext
from shoal.kernel.traits import Traits
from shoal.testing.contracts.tool import ToolContract
from shoal.tools.functions import tool as make_tool
from shoal.tools.registry import Registry


@make_tool(Traits(effect="read", idempotent=True))
def weigh(
    name: Annotated[str, "Name of the thing."], digits: Annotated[list[int], "Digits of its weight in grams."]
) -> str:
    """Weigh a thing."""
    return f"{name}: {digits} g"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    registry = asyncio.run(all_tools(tmp_path_factory.mktemp("shoal")))
    registry.add(weigh)
    return registry


def test_every_tool_is_tested(tools: Registry) -> None:
    assert sorted(tools.names()) == sorted({name for name, _ in TRAITS.items()} | {"weigh"})


@pytest.mark.parametrize("name", [*(name for name, _ in TRAITS.items()), "weigh"])
class TestTools(ToolContract):
    @pytest.fixture
    def tool(self, name: str, tools: Registry) -> Tool:
        tool = tools.get(name)
        assert tool is not None
        return tool

    @pytest.fixture
    def context(self, tmp_path: Path) -> ToolContext:
        return example_context(tmp_path)

    def test_the_schema_is_valid_and_accepts_the_example(self, tool: Tool, good: str) -> None:
        schema = json.loads(tool.spec.parameters)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(good), schema)

    def test_an_unknown_argument_is_named(self, tool: Tool, context: ToolContext, good: str) -> None:
        with pytest.raises(ToolError, match=r"`surplus`.*The tool takes"):
            tool.prepare(json.dumps({**json.loads(good), "surplus": 1}), context)

    def test_read_only_tools_are_idempotent(self, tool: Tool) -> None:
        assert tool.traits.idempotent or not tool.traits.read_only
