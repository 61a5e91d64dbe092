"""Settings in [mcp.NAME]."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, cast

from msgspec import Meta

from shoal.kernel.secret import Secret
from shoal.kernel.section import URL_OR_EMPTY, Problem, Section, header_problems
from shoal.kernel.settings import Config

MCP_NAME = r"[a-z0-9][a-z0-9-]{0,23}"
"""Pattern for server names. A name contains no `_`, so `mcp_SERVER_TOOL` is unambiguous."""


class McpServerSettings(Section, frozen=True, kw_only=True):
    """A Model Context Protocol (MCP) server. Choose a NAME of lowercase letters, digits and hyphens. Agents see its
    tools as mcp_NAME_TOOL. Set either a command or a url.
    """

    live = frozenset({"enabled", "command", "args", "env", "url", "headers"})

    enabled: bool = True
    """Whether Shoal connects to the server."""
    command: str = ""
    """Program that runs the server and communicates over standard input and output."""
    args: tuple[str, ...] = ()
    """Arguments of the program."""
    env: dict[str, Secret] = {}
    """Environment of the program, in addition to PATH, HOME, USER, LOGNAME, SHELL and TERM. The program inherits no
    other variables.
    """
    sandbox: bool = False
    """Whether the program runs in bubblewrap instead of directly on the host. It then has its own folder, and the
    network settings of [sandbox] apply.
    """
    url: Annotated[str, Meta(pattern=URL_OR_EMPTY)] = ""
    """URL of a running server that uses streamable HTTP. Private addresses are allowed."""
    headers: dict[str, Secret] = {}
    """HTTP headers for each request, such as Authorization."""
    tools: tuple[str, ...] = ()
    """Names of the tools to use, as the server lists them. If empty, agents can use all tools."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=900)] = 60.0
    """Time limit for startup and for each response, in seconds."""

    @property
    def identity(self) -> str:
        """Identity of the server: its URL or command line. If it changes, approvals and pins no longer apply."""
        return self.url or shlex.join([self.command, *self.args])

    def problems(self, name: str = "") -> Iterator[Problem]:
        if not re.fullmatch(MCP_NAME, name):
            yield (), "must have a name of 1 to 24 lowercase letters, digits and -"
        yield from header_problems(self.headers)
        if self.enabled and bool(self.command) == bool(self.url):
            problem = "and url are both set" if self.command else "is missing"
            yield ("command",), f"{problem}. Set either the command that starts the server, or the url of a running one"
        if self.sandbox and self.url:
            yield ("sandbox",), "must be false for a server with a url"


SERVERS = dict[str, McpServerSettings]
"""Configured servers by name."""


def servers_of(config: Config) -> Mapping[str, McpServerSettings]:
    return cast(Mapping[str, McpServerSettings], getattr(config, "mcp", {}))


def tool_patterns(config: Config) -> Iterator[str]:
    return (any_tool_of(name) for name, server in servers_of(config).items() if server.enabled)


def any_tool_of(server: str) -> str:
    return f"mcp_{server}_*"
