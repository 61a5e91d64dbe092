"""Thinking and tool calls that models write as text, split at any point, and ordinary text about such markup."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel.messages import ModelDone
from shoal.models.answers import AnswerContext
from shoal.models.openai import OpenAiChat


def read(text: str, cuts: list[int] | None = None, *, offers_tools: bool = True, finish: str = "stop") -> ModelDone:
    context = AnswerContext("mine", "openai:mine", frozenset(), lambda: "new", offers_tools=offers_tools)
    reader = OpenAiChat().reader(context)
    ends = sorted({min(cut, len(text)) for cut in cuts or ()} | {len(text)})
    at = 0
    for end in ends:
        reader.feed(json.dumps({"choices": [{"delta": {"content": text[at:end]}}]}).encode())
        reader.deltas()
        at = end
    reader.feed(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}).encode())
    result = reader.result()
    assert isinstance(result, ModelDone), result
    return result


def said(result: ModelDone) -> tuple[str, str, list[tuple[str, object]]]:
    calls: list[tuple[str, object]] = []
    for call in result.message.tool_calls:
        try:
            calls.append((call.name, json.loads(call.arguments)))
        except ValueError:
            calls.append((call.name, call.arguments))
    return result.message.text.strip(), result.thinking.strip(), calls


LS = [("bash", {"command": "ls"})]
OSS = [("functions.bash", {"command": "ls"})]
THINKING = {
    "<think>\nhm\n</think>\n\nHi": ("Hi", "hm", []),
    "<think>hm</think>Hi": ("Hi", "hm", []),
    "\n<think>\n\n</think>\n\nHi": ("Hi", "", []),
    "<thinking>hm</thinking>Hi": ("Hi", "hm", []),
    "<reasoning>hm</reasoning>\nHi": ("Hi", "hm", []),
    "<thought>hm</thought>Hi": ("Hi", "hm", []),
    "[THINK]hm[/THINK]Hi": ("Hi", "hm", []),
    "◁think▷hm◁/think▷Hi": ("Hi", "hm", []),
    "<seed:think>hm</seed:think>Hi": ("Hi", "hm", []),
    "<think>a</think><think>b</think>Hi": ("Hi", "ab", []),
    "<think>\nhm": ("", "hm", []),
    "hm\n</think>\n\nHi": ("Hi", "hm", []),
    "</think>\n\nHi": ("Hi", "", []),
    "Hi\n</think>": ("Hi", "", []),
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>": (
        "Hi", "hm", []),
    "<|channel|>commentary<|message|>I look.<|end|>": ("I look.", "", []),
    "<think>hm</thinking>Hi": ("Hi", "hm", []),
    "<scratchpad>hm</scratchpad>Hi": ("Hi", "hm", []),
    "<think>hm</think>\n<answer>\nHi\n</answer>": ("Hi", "hm", []),
    "<|begin_of_thought|>hm<|end_of_thought|><|begin_of_solution|>Hi<|end_of_solution|>": ("Hi", "hm", []),
    "Hi</s>": ("Hi", "", []),
    "<|assistant|>Hi<|start_header_id|>assistant<|end_header_id|>": ("Hi", "", []),
    "Hi<|im_end|>": ("Hi", "", []),
    "Hi<|eot_id|>": ("Hi", "", []),
}  # fmt: skip
CALLS = {
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>': ("", "", LS),
    'I look.\n<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>': ("I look.", "", LS),
    '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}': ("", "", LS),
    '<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>\n'
    '<tool_call>{"name":"read","arguments":{}}</tool_call>': ("", "", [*LS, ("read", {})]),
    '<tool_call>{"name":"write","arguments":{"content":"</tool_call>"}}</tool_call>': (
        "", "", [("write", {"content": "</tool_call>"})]),
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>": ("", "", LS),
    '<function=bash>{"command": "ls"}</function>': ("", "", LS),
    "<function=write><parameter=text>\na\n\nb </parameter> c\n</parameter></function>": (
        "", "", [("write", {"text": "a\n\nb </parameter> c"})]),
    '[TOOL_CALLS][{"name": "bash", "arguments": {"command": "ls"}}]': ("", "", LS),
    '[TOOL_CALLS]bash[ARGS]{"command": "ls"}': ("", "", LS),
    '[TOOL_CALLS]bash{"command": "ls"}[TOOL_CALLS]read{}': ("", "", [*LS, ("read", {})]),
    '<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}<|eom_id|>': ("", "", LS),
    '<|python_tag|>{"name":"bash","parameters":{"command":"ls"}}; {"name":"read","parameters":{}}': (
        "", "", [*LS, ("read", {})]),
    '<|python_tag|>bash.call(command="ls")': ("", "", LS),
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{"command": "ls"}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>": ("", "", LS),
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>read<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>": ("", "", [*LS, ("read", {})]),
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">ls'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>": ("", "", LS),
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}'
    "<|tool_call_end|><|tool_calls_section_end|>": ("", "", [("functions.bash", {"command": "ls"})]),
    "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>": ("", "", LS),
    "<tool_call>time</tool_call>": ("", "", [("time", {})]),
    '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n'
    "</minimax:tool_call>": ("", "", LS),
    '<function_calls>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n</function_calls>': (
        "", "", LS),
    '<tool_calls>\n{"name":"bash","arguments":{"command":"ls"}}\n{"name": "read", "arguments": {}}\n</tool_calls>': (
        "", "", [*LS, ("read", {})]),
    '<|tool_call_start|>[bash(command="ls")]<|tool_call_end|>': ("", "", LS),
    '<|tool_call|>[{"name": "bash", "arguments": {"command": "ls"}}]': ("", "", LS),
    '<|tool_call>call:bash{command:<|"|>ls<|"|>}<tool_call|>': ("", "", [("bash", '{command:"ls"}')]),
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "bash", "parameters": {"command": "ls"}}]<|END_ACTION|>': (
        "", "", LS),
    '<|action_start|><|plugin|>{"name": "bash", "parameters": {"command": "ls"}}<|action_end|>': ("", "", LS),
    '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command":"ls"}<|call|>': ("", "", OSS),
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.bash<|channel|>commentary json<|message|>"
    '{"command":"ls"}<|call|>': ("", "hm", OSS),
    '<think>\nhm\n</think>\n\n<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>': ("", "hm", LS),
    '<think>\nhm\n<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>': ("", "hm", LS),
    '<tool_call>{"name":"bash","arguments":{"command":"rm -rf /tm': (
        "", "", [("bash", '{"name":"bash","arguments":{"command":"rm -rf /tm')]),
    "<function=bash><parameter=command>rm -rf /tm": ("", "", [("bash", "<parameter=command>rm -rf /tm")]),
}  # fmt: skip
TEXTS = (
    "Use `<think>` and `</think>` for that.",
    "```xml\n<think>\nhm\n</think>\n```\nHi",
    'The tags are:\n```\n<tool_call>{"name":"bash","arguments":{}}</tool_call>\n```\nDone.',
    'Hermes writes `<tool_call>{"name":"bash","arguments":{}}</tool_call>` for a call.',
    "The <tool_call> tag is Hermes'.",
    "<think> and </think> are tags of reasoning models.",
    "<think> is a tag of reasoning models.",
    "A model closes it with </think> and goes on.",
    'It says "<tool_call>" there.',
    "a < b and b > c, [x] and <b>bold</b>",
    "Strike <s>this</s>",
    "<thin is not a tag",
    "    code\n~~~\n<function=x>\n~~~\n",
    "[TOOL",
    "1 <",
)


@pytest.mark.parametrize("text", THINKING)
def test_thinking_is_not_text(text: str) -> None:
    assert said(read(text)) == THINKING[text]


@pytest.mark.parametrize("text", CALLS)
def test_calls_are_not_text(text: str) -> None:
    assert said(read(text)) == CALLS[text]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_about_markup_stay_whole(text: str) -> None:
    result = read(text)
    assert (result.message.text, result.message.tool_calls, result.thinking) == (text, (), "")


@given(st.sampled_from([*THINKING, *CALLS, *TEXTS]), st.lists(st.integers(1, 200), max_size=20))
def test_any_split_gives_the_same_result(text: str, cuts: list[int]) -> None:
    assert said(read(text, cuts)) == said(read(text))


@given(st.sampled_from([*THINKING, *CALLS, *TEXTS]))
def test_one_character_at_a_time_gives_the_same(text: str) -> None:
    assert said(read(text, list(range(len(text))))) == said(read(text))


@pytest.mark.parametrize("text", ['<tool_call>{"name":"bash","arguments":{}}</tool_call>', "[TOOL_CALLS]bash{}"])
def test_text_is_never_parsed_as_a_call_if_no_tools_are_offered(text: str) -> None:
    assert said(read(text, offers_tools=False)) == (text, "", [])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.lists(st.integers(1, 60), max_size=8))
def test_any_other_text_is_unchanged(text: str, cuts: list[int]) -> None:
    if text.strip():
        assert read(text, cuts).message.text == text


@given(
    st.lists(st.sampled_from([*CALLS, "<tool_call>", "<|channel|>", "{", '"', "\n", "`", "</think>", "Hi"]), max_size=6)
)
def test_no_markup_breaks_the_reader(parts: list[str]) -> None:
    read("x" + "".join(parts))
