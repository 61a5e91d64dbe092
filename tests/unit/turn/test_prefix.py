"""Instructions and tools in a small context window: fitting them into their room, the essential ones first."""

from hypothesis import example, given
from hypothesis import strategies as st
from tests.known_tools import TRAITS

from shoal.kernel.messages import MORE_TOOLS, ToolSpec
from shoal.kernel.traits import RANK_LAST
from shoal.tools.offer import Offer, offer
from shoal.turn.prefix import fit_prefix
from shoal.turn.prompt import PromptSection, SystemPrompt, assemble
from shoal.turn.tokens import Meter

CORE = tuple(
    sorted(
        TRAITS.names(lambda tool: tool.offered == "always" and tool.rank < RANK_LAST),
        key=lambda name: TRAITS.of(name).rank,
    )
)
NAMES = ("identity", "prompt", "rules", "skills", "docs", "memory global")


def spec(name: str, chars: int) -> ToolSpec:
    return ToolSpec(name, "d" * chars, '{"type":"object","properties":{}}')


def prompt_of(sizes: list[int]) -> SystemPrompt:
    return assemble(
        PromptSection(name, f"# {name}\n" + "w " * size) for name, size in zip(NAMES, sizes, strict=False) if size
    )


prompts = st.lists(st.integers(0, 20_000), min_size=1, max_size=len(NAMES)).map(prompt_of)
tools = st.tuples(st.integers(0, 2_000), st.integers(0, 150), st.booleans()).map(
    lambda drawn: offer(
        [spec(name, drawn[0]) for name in sorted(CORE)],
        [spec(f"mcp_tracker_{number}", 100) for number in range(drawn[1])],
        may_find=drawn[2],
    )
)


@given(prompt=prompts, told=tools, room=st.integers(600, 8_000))
@example(prompt=prompt_of([0]), told=offer([spec("bash", 2_228)], [], may_find=False), room=600)
def test_the_prefix_never_exceeds_its_room(prompt: SystemPrompt, told: Offer, room: int) -> None:
    meter = Meter()
    fitted = fit_prefix(meter, prompt, told, room, TRAITS)
    assert fitted.units == meter.prefix(fitted.system, fitted.tools) <= room
    assert fit_prefix(Meter(), prompt, told, room, TRAITS) == fitted
    names = [one.name for one in (*fitted.tools, *fitted.further) if one.name != MORE_TOOLS]
    assert sorted(names) == sorted(one.name for one in told.all)


def test_core_tools_are_listed_in_order_and_the_rest_can_be_found() -> None:
    told = offer([spec(name, 400) for name in sorted(CORE)], [])
    fitted = fit_prefix(Meter(), prompt_of([50, 50, 200, 3_000]), told, 1_500, TRAITS)
    names = {one.name for one in fitted.tools}
    assert names == {*CORE[: len(names) - 1], MORE_TOOLS}
    assert "bash" in names
    assert {one.name for one in fitted.further} == set(CORE) - names


def test_rules_are_kept_whole_with_long_memory() -> None:
    prompt = prompt_of([50, 50, 400, 100, 20_000, 20_000])
    fitted = fit_prefix(Meter(), prompt, offer([], []), 1_500, TRAITS)
    kept = {section.name for section in prompt.sections if section.text in fitted.system}
    assert kept == {"identity", "prompt", "rules", "skills"}
    assert "omitted here" in fitted.system


def test_unfindable_tools_are_listed_as_far_as_they_fit() -> None:
    told = offer([spec(name, 400) for name in sorted(CORE)], [], may_find=False)
    fitted = fit_prefix(Meter(), prompt_of([50]), told, 600, TRAITS)
    assert MORE_TOOLS not in {one.name for one in fitted.tools}
    assert 0 < len(fitted.tools) < len(CORE)
    nothing = fit_prefix(Meter(), prompt_of([50]), offer([spec("bash", 40_000)], [], may_find=False), 600, TRAITS)
    assert nothing.tools == ()


def test_instructions_use_the_room_left_by_rules() -> None:
    for rules in (10, 400, 1_000):
        prompt = prompt_of([50, 50, rules, 100, 20_000, 20_000])
        fitted = fit_prefix(Meter(), prompt, offer([], []), 3_000, TRAITS)
        assert 2_900 < fitted.units <= 3_000
