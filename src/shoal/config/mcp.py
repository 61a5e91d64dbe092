"""The sections [mcp.NAME]: servers of the Model Context Protocol whose tools the agents get."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.config.secret import Secret

NAME = r"[a-z0-9][a-z0-9-]{0,23}"
"""What a server can be called; no `_`, so that `mcp_SERVER_TOOL` says which server is meant."""


class Mcp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server of the Model Context Protocol, under a name of your choice (lower-case letters, digits and -). Its tools
    are called mcp_NAME_TOOL. Give a command or a url."""

    enabled: bool = True
    """Whether it is used."""
    command: str = ""
    """Program that is started and spoken to over its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, Secret] = {}
    """Its environment, beside PATH, HOME, USER, LOGNAME, SHELL and TERM; it gets nothing else of Shoal's."""
    sandbox: bool = False
    """Whether it runs in bubblewrap, with the network of [sandbox] and a folder of its own, instead of as a program of
    this machine."""
    url: Annotated[str, Meta(pattern=r"^$|^https?://\S+$")] = ""
    """Address of a server that runs already and speaks streamable HTTP; private addresses are allowed here."""
    headers: dict[str, Secret] = {}
    """HTTP headers of each request to it, such as Authorization."""
    tools: tuple[str, ...] = ()
    """The tools to take, by the server's own names; empty takes all."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=900)] = 60.0
    """Longest wait for it to start, and for each answer, in seconds."""
