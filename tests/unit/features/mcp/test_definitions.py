"""Tool definitions from MCP servers are bounded and sanitized before a model or provider sees them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shoal.features.mcp.definitions import DESCRIPTION_CHARS_MAX, described, tool_name


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,23}", fullmatch=True), st.text(min_size=1))
def test_every_name_suits_every_provider(server: str, tool: str) -> None:
    assert re.fullmatch(r"mcp_[A-Za-z0-9_-]{1,60}", tool_name(server, tool))


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=8, unique=True))
def test_different_tools_have_different_names(tools: list[str]) -> None:
    assert len({tool_name("files", tool) for tool in tools}) == len(tools)


def test_a_plain_name_is_unchanged() -> None:
    assert tool_name("files", "read_file") == "mcp_files_read_file"
    assert tool_name("a", "b.c") != tool_name("a", "b/c")


def test_descriptions_are_short_visible_and_name_their_server() -> None:
    text = described("files", "Reads.\x1b[2J\u202e" + "x" * 5000)
    assert text.startswith("[Tool from the MCP server files, which wrote this description] Reads.\\x1b[2J\\u202e")
    assert len(text) < DESCRIPTION_CHARS_MAX + 100
