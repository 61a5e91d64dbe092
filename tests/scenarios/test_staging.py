"""Staged calls: what the model does not need the result of waits for one card at the end of the turn."""

import json
from pathlib import Path

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import ToolFinished
from shoal.kernel.messages import Author
from shoal.kernel.ports import Tool
from shoal.kernel.traits import Traits
from shoal.platforms.inbox import press
from shoal.store.store import Store
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import World, scenario
from shoal.threads.access_gate import OpenInbox
from shoal.tools.functions import tool

STANDARD: dict[str, dict[str, object]] = {"permissions": {"default_profile": "standard"}}
ADA = Author("ada", "Ada", trusted=True)


class Outside:
    """The world outside: a tool `send` that writes down what it was given."""

    def __init__(self) -> None:
        self.sent = list[str]()

    def tool(self) -> Tool:
        @tool(Traits(effect="outward", can_stage=True, origin="own", changes="nothing", harm="message"))
        async def send(to: str, text: str = "") -> str:
            """Send something to somebody."""
            self.sent.append(f"{to}: {text}")
            return f"delivered to {to}"

        return send


def sends(*to: str, text: str = "") -> Reply:
    return Reply(text, calls=tuple(Call("send", json.dumps({"to": one, "text": f"hello {one}"})) for one in to))


async def pressed(world: World, part: str, label: str) -> str:
    """Press a button of the card."""
    card = await world.ada.sees(part)
    value = next(button.value for button in card.buttons if button.label.startswith(label))
    return await press(value, world.ada.thread, ADA, world.app[OpenInbox])


async def test_the_turn_goes_on_and_one_card_at_its_end_does_all_in_order(tmp_path: Path) -> None:
    outside = Outside()
    model = FakeModel(sends("bob"), sends("eve"), "I prepared two messages.", "You are welcome.")
    async with scenario(tmp_path, model, tools=[outside.tool()], settings=STANDARD) as world:
        await world.ada.says("write to bob and eve")
        await world.ada.sees("I prepared two messages.")
        card = await world.ada.sees("Do these 2 things?")
        assert [button.label for button in card.buttons] == ["Do all", "Choose", "Discard"]
        assert outside.sent == []
        results = [event.data for event in await world.journal() if isinstance(event.data, ToolFinished)]
        assert all(result.staged and result.text.startswith("Staged, not done: ") for result in results)
        assert await pressed(world, "Do these 2 things?", "Do all") == "Accepted."
        await world.happens(world.ada.thread, "turn_finished", 2)
        assert outside.sent == ["bob: hello bob", "eve: hello eve"]
        await world.rests()
        assert "✅ Done." in card.markdown
        assert card.buttons == ()
        await world.ada.says("thanks")
        await world.ada.sees("You are welcome.")
        assert "delivered to bob" in model.requests[-1].messages[-1].text
        assert len(model.requests) == 4, "what was accepted runs without the model"
        assert await world.app[Store].approvals.search() == []
        assert world.app[AgentRegistry].spec("main").profile == "standard"
