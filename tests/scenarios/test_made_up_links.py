"""In a turn that read untrusted content, addresses that the model made up are no links; those it read are."""

import json
from pathlib import Path

from tests.scenarios.kit import calls

from shoal.domain.events import AssistantSaid, TurnFinished
from shoal.permissions.access import AccessRules
from shoal.testing.model import FakeModel
from shoal.testing.scenario import scenario

ANSWER = "See https://docs.example.org/guide and https://evil.example/?q=secret."


async def test_what_a_stranger_has_answered_for_makes_no_new_link(tmp_path: Path) -> None:
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


async def test_what_it_says_by_a_tool_is_no_way_around(tmp_path: Path) -> None:
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


async def test_in_a_clean_turn_links_stay(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel(ANSWER)) as world:
        await world.ada.says("Where is it?")
        assert (await world.ada.sees("evil.example")).markdown == ANSWER
