"""A small MCP server on standard input and output whose tools misbehave. Uses only the standard library.

Its tools are listed in TOOLS and in `more.json` in its working directory. `more.json` can also change a tool, or
remove it with null. Arguments:

- mute: never respond.
- fail: exit immediately.
- stubborn: ignore requests to exit.
"""

import json
import os
import signal
import sys
from pathlib import Path

MORE = Path("more.json")
LISTINGS = Path("listings")
"""If this file exists, the server appends a line for each listing and then reports that its tools changed."""
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one pixel
)
ANYTHING = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = ["echo", "environment", "die", "hang", "noise", "picture", "refuse", "grow", "where"]


def tools() -> list[object]:
    more = json.loads(MORE.read_text()) if MORE.exists() else []
    changes: dict[str, dict[str, object] | None] = more if isinstance(more, dict) else {}
    hints = {"readOnlyHint": True, "idempotentHint": True}
    names = [name for name in dict.fromkeys([*TOOLS, *more]) if changes.get(name, {}) is not None]
    return [
        {"name": name, "inputSchema": ANYTHING, "annotations": hints, **(changes.get(name) or {})} for name in names
    ]


def text(words: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": words}]}


def say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(name: str, arguments: dict[str, str]) -> dict[str, object] | None:
    match name:
        case "echo":
            return text(arguments.get("text", ""))
        case "environment":
            return text(json.dumps(dict(os.environ)))
        case "where":
            return text(str(Path.cwd()))
        case "die":
            sys.stderr.write(arguments.get("text", "going down now") + "\n")
            sys.stderr.flush()
            os._exit(3)
        case "hang":
            return None
        case "noise":
            sys.stdout.write('no json\n{"jsonrpc": "2.0", "id": 99999, "result": {}}\n{"half": \n')
            sys.stdout.flush()
            sys.stdout.buffer.write(b"\xff\xfe no text\n")
            return text("still here")
        case "picture":
            kind = arguments.get("text", "image")
            return {"content": [{"type": kind, "data": PICTURE, "mimeType": "image/png"}]}
        case "refuse":
            return {**text("not today"), "isError": True}
        case "grow":
            MORE.write_text('["late"]')
            if arguments:
                LISTINGS.touch()
            say({"method": "notifications/tools/list_changed"})
            return text("grown")
        case _:
            return text(f"called {name}")


def answer(method: str, params: dict[str, object]) -> dict[str, object] | None:
    match method:
        case "initialize":
            server = {"name": "odd", "version": "1"}
            can = {"tools": {"listChanged": True}}
            return {"protocolVersion": params["protocolVersion"], "capabilities": can, "serverInfo": server}
        case "tools/list":
            return {"tools": tools()}
        case "tools/call":
            return call(str(params["name"]), dict(params.get("arguments") or {}))  # pyrefly: ignore[no-matching-overload]
        case _:
            return {}


def main() -> None:
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "fail" in sys.argv:
        sys.stderr.write("there is no configuration\n")
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "mute" in sys.argv:
            continue
        if message["method"] == "server/discover":
            say({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            continue
        result = answer(message["method"], message.get("params") or {})
        if result is not None:
            say({"id": message["id"], "result": result})
        if message["method"] == "tools/list" and LISTINGS.exists():
            with LISTINGS.open("a") as listings:
                listings.write("x")
            say({"method": "notifications/tools/list_changed"})
    while "stubborn" in sys.argv:
        signal.pause()


if __name__ == "__main__":
    main()
