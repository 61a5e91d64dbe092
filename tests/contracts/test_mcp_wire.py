"""MCP servers that break the protocol in small ways, byte for byte. Shoal uses all readable parts of their messages."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.contracts.mcp_stand import Stand, configured, connected

from shoal.kernel.ports import ToolOutput

pytest.importorskip("mcp", reason="the extra mcp is not installed")
RAW = str(Path(__file__).with_name("mcp_raw_server.py"))
HEAD = '{"jsonrpc":"2.0","id":$ID,'


def raw(tmp_path: Path, **script: list[str] | str) -> AbstractAsyncContextManager[Stand]:
    """Connect to a server that runs this script. `init`, `list`, `second` and `call` abbreviate the usual methods."""
    methods = {"list": "tools/list", "call": "tools/call", "init": "initialize", "second": "tools/list 2"}
    lines = {methods.get(name, name): [one] if isinstance(one, str) else one for name, one in script.items()}
    path = tmp_path / "script.json"
    path.write_text(json.dumps(lines))
    server = configured("raw", sys.executable, "-S", "-I", RAW, str(path), folder=tmp_path / "f", timeout_seconds=20)
    return connected(tmp_path, server)


async def each(tmp_path: Path, answers: Sequence[list[str]]) -> AsyncIterator[tuple[int, ToolOutput]]:
    """Yield the number and output of each tool. The tool `tN` responds with the lines in `answers[N]`."""
    tools = ",".join(f'{{"name":"t{number}","inputSchema":{{"type":"object"}}}}' for number in range(len(answers)))
    calls = {f"tools/call t{number}": lines for number, lines in enumerate(answers)}
    async with raw(tmp_path, list=result(f'{{"tools":[{tools}]}}'), **calls) as stand:
        await stand.becomes("up")
        for number in range(len(answers)):
            yield number, await stand.call(f"mcp_raw_t{number}")


def result(text: str) -> str:
    return HEAD + f'"result":{text}}}'


RESULTS = (
    ('{"content":[{"type":"text","text":"kept"},{"type":"hologram","x":1}]}', "kept", False),
    ('{"content":[{"type":"text","text":"kept","annotations":{"priority":9,"audience":["bot"]}}]}', "kept", False),
    ('{"content":null,"structuredContent":{"kept":1}}', '{"kept": 1}', False),
    ('{"structuredContent":{"kept":1}}', '{"kept": 1}', False),
    ('{"content":[{"type":"text","text":"kept"}],"isError":"true"}', "kept", True),
    ('{"content":[{"type":"text","text":"kept"}],"_meta":7,"extra":[1]}', "kept", False),
    ('{"content":"kept"}', "kept", False),
    ('{"content":[{"type":"resource","resource":{"uri":"not a uri","text":"kept"}}]}', "kept", False),
    ('{"content":[{"type":"resource_link","uri":"a:b"}]}', "[resource a:b: ]", False),
    ('{"content":[{"type":"text","text":"half \\\\ud83d kept"}]}', "kept", False),
    ('{"content":[{"type":"text","text":"nul \\\\u0000 kept"}]}', "kept", False),
    ('{"content":[{"type":"text","text":"tab\tand \x01 kept"}]}', "kept", False),
    ('{"content":[],"temperature":NaN}', "[no content]", False),
    ('["kept"]', "kept", False),
    ('"kept"', "kept", False),
    ("null", "[no content]", False),
    ("true", "true", False),
)


async def test_an_oddly_formed_result_is_read(tmp_path: Path) -> None:
    answers = [[result(answer.replace("\\\\u", "\\u"))] for answer, _, _ in RESULTS]
    async for number, output in each(tmp_path, answers):
        _, expected, is_error = RESULTS[number]
        assert expected in output.text
        assert output.is_error is is_error, expected


ERRORS = (
    ('"error":{"code":"ENOENT","message":"gone"}}', "ENOENT: gone"),
    ('"error":{"code":"-32000","message":"gone"}}', "gone"),
    ('"error":{"code":1.5,"message":"gone"}}', "gone"),
    ('"error":{"code":-32000}}', "-32000"),
    ('"error":"gone"}', "gone"),
    ('"error":{"code":null,"message":null,"data":"gone"}}', "gone"),
    ('"error":{"code":-32000,"message":{"text":"gone"}}}', "gone"),
    ('"error":{"code":-1,"message":"gone"},"result":null}', "gone"),
)


async def test_an_oddly_formed_error_is_reported(tmp_path: Path) -> None:
    async for number, output in each(tmp_path, [[HEAD + answer] for answer, _ in ERRORS]):
        assert output.is_error, ERRORS[number]
        assert ERRORS[number][1] in output.text


FINE = result('{"content":[{"type":"text","text":"fine"}]}')


AROUND = (
    ["Server listening on stdio", "DEBUG {broken", FINE],
    ["\ufeff" + FINE],
    ["\r" + FINE + "\r"],
    ["INFO: " + FINE],
    [FINE.replace('"id":$ID', '"id":"$ID"')],
    [FINE.replace('"id":$ID', '"id":$ID.0')],
    [FINE.replace('"jsonrpc":"2.0",', "")],
    [FINE.replace('"jsonrpc":"2.0"', '"jsonrpc":2.0')],
    [FINE[:-1] + ',"error":null}'],
    [FINE[:-1] + ',"error":{}}'],
    [f"[{FINE}]"],
    ['{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"loud","data":1}}', FINE],
    ['{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}', FINE],
    ['{"jsonrpc":"2.0","method":"notifications/unheard"}', FINE],
    ['{"jsonrpc":"2.0","id":99,"method":"roots/list"}', FINE],
    ['{"jsonrpc":"2.0","id":"other","result":{}}', FINE],
    ["", "null", "7", "[]", FINE],
    ["\udcff\udcfe", FINE],
)


async def test_noise_around_an_answer_does_not_hide_it(tmp_path: Path) -> None:
    async for number, output in each(tmp_path, AROUND):
        assert "fine" in output.text, AROUND[number]


@pytest.mark.parametrize(
    "answer",
    [
        '{"protocolVersion":"2099-01-01","capabilities":{"tools":{}},"serverInfo":{"name":"r","version":"1"}}',
        '{"protocolVersion":1,"capabilities":{"tools":true},"serverInfo":"r"}',
        '{"protocolVersion":"2025-06-18","serverInfo":{"name":"r"}}',
        "{}",
    ],
)
async def test_an_oddly_formed_initialize_response_is_accepted(tmp_path: Path, answer: str) -> None:
    async with raw(tmp_path, init=result(answer)) as stand:
        assert (await stand.becomes("up")).tools == ("mcp_raw_t",)
        assert "fine" in (await stand.call("mcp_raw_t")).text


GOOD = '{"name":"good","inputSchema":{"type":"object"}}'


BAD = (
    ('{"name":"bad","inputSchema":{"type":"array"}}', "bad: its arguments are of type array"),
    ('{"name":7,"inputSchema":{"type":"object"}}', "a tool has no name"),
    ('{"inputSchema":{"type":"object"}}', "a tool has no name"),
    ('"bad"', "a tool has no name"),
    ("null", "a tool has no name"),
)


async def test_bad_definitions_are_skipped_and_named(tmp_path: Path) -> None:
    bad = ",".join(definition for definition, _ in BAD)
    async with raw(tmp_path, list=result(f'{{"tools":[{bad},{GOOD}]}}')) as stand:
        state = await stand.becomes("up")
    assert state.tools == ("mcp_raw_good",)
    assert [text.startswith(told) for text, (_, told) in zip(state.left_out, BAD, strict=True)] == [True] * len(BAD)
    assert f"skipped: {BAD[0][1]}" in state.summary
    assert "validation" not in state.summary


ODD = (
    '{"name":"odd"}',
    '{"name":"odd","inputSchema":null}',
    '{"name":"odd","inputSchema":"object"}',
    '{"name":"odd","inputSchema":{}}',
    '{"name":"odd","inputSchema":true}',
    '{"name":"odd","inputSchema":{"type":"object","properties":[]}}',
    '{"name":"odd","inputSchema":{"type":"object","properties":{"a":"string"},"required":"a"}}',
    '{"name":"odd","inputSchema":{"type":["object","null"],"required":["a",1]}}',
    '{"name":"odd","inputSchema":{"anyOf":[{"type":"object"},{"type":"null"}]}}',
    '{"name":"odd","parameters":{"type":"object"}}',
    '{"name":"odd","inputSchema":{"type":"object"},"description":7,"title":null}',
    '{"name":"odd","inputSchema":{"type":"object"},"outputSchema":{"type":"array"},"annotations":"x"}',
    '{"name":"odd","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"maybe"},"icons":7}',
)


async def test_odd_definitions_become_tools_like_the_others(tmp_path: Path) -> None:
    names = [f"odd{number:02}" for number in range(len(ODD))]
    odd = ",".join(definition.replace('"odd"', f'"{name}"') for definition, name in zip(ODD, names, strict=True))
    async with raw(tmp_path, list=result(f'{{"tools":[{odd},{GOOD}]}}')) as stand:
        state = await stand.becomes("up")
        assert state.tools == ("mcp_raw_good", *(f"mcp_raw_{name}" for name in names))
        assert state.left_out == ()
        for name in names:
            assert "fine" in (await stand.call(f"mcp_raw_{name}", '{"a": "b"}')).text, name


async def test_arguments_keep_the_servers_own_names(tmp_path: Path) -> None:
    tool = '{"name":"t","inputSchema":{"properties":{"$filter":{"type":"string"}},"required":["$filter"]}}'
    echo = result('{"content":[{"type":"text","text":"seen"}],"structuredContent":{$ARGUMENTS}}')
    async with raw(tmp_path, list=result(f'{{"tools":[{tool}]}}'), call=echo) as stand:
        await stand.becomes("up")
        offered = stand.registry.get("mcp_raw_t")
        assert offered is not None
        (name,) = json.loads(offered.spec.parameters)["properties"]
        prepared = offered.prepare(json.dumps({name: "a eq 1"}), stand.context)
        assert prepared.actions[0].text == 'tool:mcp_raw_t:{"$filter":"a eq 1"}'
        assert '"arguments": {"$filter": "a eq 1"}' in (await prepared.run()).text


async def test_paging_ends_at_a_repeated_cursor_or_a_failed_page(tmp_path: Path) -> None:
    first = result(f'{{"tools":[{GOOD}],"nextCursor":"2"}}')
    again = result('{"tools":[{"name":"more","inputSchema":{}}],"nextCursor":"2"}')
    async with raw(tmp_path, list=first, second=again) as stand:
        assert (await stand.becomes("up")).tools == ("mcp_raw_good", "mcp_raw_more")
    fails = HEAD + '"error":{"code":-32602,"message":"bad cursor"}}'
    async with raw(tmp_path, list=first, second=fails) as stand:
        assert (await stand.becomes("up")).tools == ("mcp_raw_good",)


@pytest.mark.parametrize(
    ("answer", "tools"),
    [
        (HEAD + '"error":{"code":-32601,"message":"no tools here"}}', ()),
        (result('{"tools":null}'), ()),
        (result("{}"), ()),
        (result(f"[{GOOD}]"), ("mcp_raw_good",)),
        (result('{"tools":{"good":{"inputSchema":{"type":"object"}}}}'), ("mcp_raw_good",)),
    ],
)
async def test_an_oddly_formed_tool_list_is_read(tmp_path: Path, answer: str, tools: tuple[str, ...]) -> None:
    async with raw(tmp_path, list=answer) as stand:
        assert (await stand.becomes("up")).tools == tools
