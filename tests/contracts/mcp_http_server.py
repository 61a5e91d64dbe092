"""An MCP server over HTTP that requires a token: `mcp_http_server.py SOCKET TOKEN`. SOCKET is the descriptor of an
inherited, bound socket.
"""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("scales")


@server.tool()
def weigh(name: str, grams: int = 1) -> str:
    """Weigh a thing."""
    return f"{name}: {grams} g"


@server.tool(annotations=ToolAnnotations(readOnlyHint=True, openWorldHint=False))
def weighed() -> str:
    """List what was weighed."""
    return "a pear"


class Guard:
    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("authorization") != f"Bearer {self.token}":
            await PlainTextResponse("no", status_code=401)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


if __name__ == "__main__":
    app = server.streamable_http_app()
    app.user_middleware.append(Middleware(Guard, token=sys.argv[2]))
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        listening.listen()
        print("ready", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
