"""An MCP server that sends scripted bytes: `mcp_raw_server.py SCRIPT`.

SCRIPT is a JSON file that maps a method, `tools/call NAME` or `tools/list CURSOR` to a list of lines to write. In
these lines, `$ID` is replaced by the request's id. A request that the script does not list gets the usual response.
"""

import json
import sys
from pathlib import Path

USUAL = {
    "initialize": '{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"r","version":"1"}}',
    "tools/list": '{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}',
    "tools/call": '{"content":[{"type":"text","text":"fine"}]}',
}


def main() -> None:
    script: dict[str, list[str]] = json.loads(Path(sys.argv[1]).read_text())
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if number is None or method is None:  # a notification, or the response to a scripted request
            continue
        name = f"{method} {message.get('params', {}).get('name', '')}".strip()
        cursor = (message.get("params") or {}).get("cursor")
        name = f"{method} {cursor}" if cursor is not None else name
        error = f'{{"jsonrpc":"2.0","id":{number},"error":{{"code":-32601,"message":"unknown"}}}}'
        usual = f'{{"jsonrpc":"2.0","id":{number},"result":{USUAL[method]}}}' if method in USUAL else error
        for answer in script.get(name, script.get(method, [usual])):
            reply = answer.replace("$ID", str(number)).replace(
                "$ARGUMENTS", json.dumps(message.get("params", {}))[1:-1]
            )
            sys.stdout.buffer.write(reply.encode("utf-8", "surrogateescape") + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
