"""Models with small windows: every request fits, and every new conversation gets a reply."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from shoal.app import Overrides, open_app
from shoal.config import load_config
from shoal.features.mcp.kinds import UNCONFIRMED
from shoal.kernel.clock import SystemClock
from shoal.kernel.events import ToolFinished, TurnFinished
from shoal.kernel.messages import ModelRequest
from shoal.testing.chat import OPEN, FakeChat
from shoal.testing.model import Call, FakeModel, Refusal, Reply, Seen
from shoal.testing.scenario import FakeModels, World, scenario
from shoal.tools.functions import tool
from shoal.tools.registry import Registry
from shoal.turn.tokens import ROUGHLY

WINDOWS = (4_096, 8_192, 16_384)


def furnish(home: Path, memory: int, skills: int, docs: int, identity: int) -> None:
    """Write memory, skills, documents and instructions. All values are sizes in characters, except the number of
    `skills`.
    """
    agent = home / "agents" / "main"
    for path, chars in (("data/MEMORY.md", memory), ("data/fake/MEMORY.md", memory), ("data/IDENTITY.md", identity)):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text("- The tide turns at noon.\n" * (chars // 26))
    for path, chars in ((agent / "docs" / "tides.md", docs), (agent / "AGENTS.md", identity)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Write the tide into the log.\n" * (chars // 29))
    for number in range(skills):
        file = home / "data" / "skills" / f"skill-{number}" / "SKILL.md"
        file.parent.mkdir(parents=True)
        file.write_text(f"---\nname: skill-{number}\ndescription: {'How to row a boat. ' * 10}\n---\nRow.\n")


def added_tools(count: int) -> list[object]:
    def mark(text: str = "", labels: str = "") -> str:
        """Mark an issue in the tracker with labels, so people who search for it can find it again."""
        return text + labels

    return [tool(UNCONFIRMED, name=f"mcp_tracker_{number}")(mark) for number in range(count)]


class Counting:
    """A model that rejects requests beyond its window. `ratio` is the number of its tokens per estimated token."""

    def __init__(self, window: int, ratio: float) -> None:
        self.window, self.ratio = window, ratio
        self.steps = [Reply(calls=(Call("more_tools", '{"find":"mark an issue"}'),)), "Aye."]

    def __call__(self, seen: Seen) -> Reply | Refusal | str:
        tokens = int(len(seen.prompt) / 4 * self.ratio)
        if tokens > self.window:
            return Refusal(400, f"the request ({tokens} tokens) exceeds the available context size")
        return self.steps.pop(0) if len(self.steps) > 1 else "Aye."


async def talk(
    home: Path, window: int, ratio: float, tools: int, text: str
) -> tuple[list[ModelRequest], list[TurnFinished]]:
    model, chat = FakeModel(script=Counting(window, ratio)), FakeChat()
    config = load_config(home, {}, {"permissions": {"default_profile": "open"}, "sandbox": {"kind": "host"}})
    parts = Overrides(
        clock=SystemClock(),
        models=FakeModels(model, context_tokens=window),
        adapters=(chat,),
        access={chat.platform: OPEN},
    )
    async with open_app(config, parts) as app:
        world = World(app, chat, model)
        for one in added_tools(tools):
            app[Registry].add(one)  # pyrefly: ignore[bad-argument-type]
        for number in (1, 2):
            await world.ada.says(f"{text} {number}")
            await world.happens(world.ada.thread, "turn_finished", number)
        journal = [event.data for event in await world.journal()]
    assert not [one for one in journal if isinstance(one, ToolFinished) and one.is_error]
    return [*model.requests], [one for one in journal if isinstance(one, TurnFinished)]


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(window=4_096, ratio=1.4, memory=60_000, skills=60, docs=90_000, identity=40_000, tools=120, words=5_000)
@example(window=8_192, ratio=1.0, memory=0, skills=0, docs=0, identity=0, tools=0, words=1)
@given(
    window=st.sampled_from(WINDOWS),
    ratio=st.sampled_from([0.8, 1.0, 1.4]),
    memory=st.sampled_from([0, 500, 60_000]),
    skills=st.sampled_from([0, 5, 60]),
    docs=st.sampled_from([0, 90_000]),
    identity=st.sampled_from([0, 2_000, 40_000]),
    tools=st.sampled_from([0, 8, 120]),
    words=st.sampled_from([1, 5_000]),
)
def test_a_new_conversation_is_answered(
    window: int, ratio: float, memory: int, skills: int, docs: int, identity: int, tools: int, words: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder), memory, skills, docs, identity)
        requests, ended = asyncio.run(talk(Path(folder), window, ratio, tools, "row " * words))
    assert [(one.outcome, one.reply) for one in ended] == [("done", "Aye."), ("done", "Aye.")]
    for one in requests:
        assert one.max_output_tokens <= window // 4
        # Summary requests have no tools.
        assert not one.tools or {spec.name for spec in (*one.tools, *one.further)} >= {
            "bash",
            "more_tools",
            "process_start",
            "time",
        }
    assert ROUGHLY.request(requests[-1]) <= window


async def test_oversized_instructions_are_not_reported_as_a_long_conversation(tmp_path: Path) -> None:
    model = FakeModel(script=lambda _: Refusal(400, "maximum context length is 900 tokens"))
    async with scenario(tmp_path, model) as world:
        await world.ada.says("hi")
        await world.ada.sees("do not fit in the model's context window")
        assert not [text for text in world.chat.texts(world.ada.thread) if "grown too long" in text]
