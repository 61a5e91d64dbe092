"""A conversation recovers from any error response of a model service: the next message gets a reply.

Each test runs the complete application against one service and its rules. A first model writes a history that the
service rejects. The service must then respond to the next message. `python -m tests.provider_table` writes
docs/providers.md from the results.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.scenarios.test_attachments import PNG, Shelf

from shoal.kernel.clock import Clock
from shoal.kernel.messages import Attachment, Author, Image, Prompt, Usage
from shoal.kernel.ports import Route, ToolContext, ToolOutput
from shoal.kernel.settings import ProviderSettings
from shoal.kernel.traits import Traits
from shoal.models.catalog import build_provider
from shoal.models.quirks import Change, QuirkMemory
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Refusal, Reply
from shoal.testing.model.script import Seen, Step
from shoal.testing.model.services import SERVICES, Service, Strict
from shoal.testing.scenario import World, scenario
from shoal.threads.attachments import Attachments
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.functions import tool

PATHS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": "", "gemini": "/v1beta"}
ODD_ID = "functions.a_tool_of_a_server_with_a_long_name:0"
PICTURE = Attachment("p.png", "image/png", len(PNG), url="https://files.example/p.png")


@tool(Traits(origin="own"))
async def look(context: ToolContext) -> ToolOutput:
    """Look out of the window."""
    path = context.home.root / "seen.png"
    await asyncio.to_thread(path.write_bytes, PNG)
    return ToolOutput("the harbour", images=(Image(str(path), "image/png"),))


class TwoModels:
    """Resolves the names of two models of one service."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}

    def route(self, name: str) -> Route:
        return self.routes.get(name) or self.routes["second"]

    def usd(self, route: Route, usage: Usage) -> float | None:
        return None


class Answers:
    """A script for FakeModel that does what the last message asks."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.number = 0

    def __call__(self, seen: Seen) -> Step | str:
        self.number += 1
        name, thinking = f"{ODD_ID}{self.number}", f"a thought of {self.who} {self.number}"
        wanted = seen.user_text.rpartition("[ada] ")[2].partition("\n")[0]
        if seen.results and seen.messages[-1].role == "tool":
            if wanted.endswith("and fail"):
                return Refusal(403, "This key may not ask any more.")
            return Reply(f"{self.who} has results", thinking=thinking)
        match wanted:
            case "please call" | "please call and fail":
                return Reply(calls=(Call("lookup", "{}", name),), thinking=thinking)
            case "please call twice":
                calls = (Call("lookup", "{}", name), Call("lookup", '{"a":1}', f"{name}b"))
                return Reply(calls=calls, thinking=thinking)
            case "please look":
                return Reply(calls=(Call("look", "{}", name),), thinking=thinking)
            case "please think":
                return Reply(f"{self.who} thought", thinking=thinking)
            case "please fail":
                return Refusal(403, "This key may not ask that.")
            case _:
                return Reply(f"{self.who} answers")


class Place:
    """A running Shoal with a strict service, a second model of the same protocol, and the requests to both."""

    def __init__(self, world: World, service: Service, models: TwoModels) -> None:
        self.world = world
        self.strict = Strict(service, Answers("second"))
        self.first = FakeModel(script=Answers("first"))
        self.second = FakeModel(script=self.strict)
        self.models = models
        self.person = world.ada
        self._service = service

    @asynccontextmanager
    async def fresh(self, number: int, memory: QuirkMemory | None = None) -> AsyncGenerator[None]:
        kind = self._service.kind
        async with self.first.serve() as first, self.second.serve() as second:
            for name, url, model in (("first", first, "first-model"), ("second", second, self._service.model)):
                settings = ProviderSettings(kind=kind, base_url=f"{url}{PATHS[kind]}", timeout_seconds=20)
                provider = build_provider(name, settings, ManualClock(), {}, memory=memory)
                self.models.routes[name] = Route(provider, model, 200_000)
            self.person = self.world.person("ada", f"thread-{number}")
            yield
            for route in self.models.routes.values():
                await route.provider.close()

    async def says(self, text: str, model: str, *files: Attachment) -> str:
        now, types = self.world.app[Clock].now(), await self.world.types(self.person.thread)
        author, key = Author("ada", "ada", trusted=True), f"{self.person.thread}:{len(types)}"
        asked = Prompt(self.person.thread, key, text, author, now, attachments=files, model=model)
        await self.world.app[Orchestrator].send(asked)
        await self.world.happens(self.person.thread, "turn_finished", types.count("turn_finished") + 1)
        await self.world.rests()
        return self.world.chat.texts(self.person.thread)[-1]

    async def heals(self, text: str = "and now?", *files: Attachment) -> None:
        """Check that the next messages get a reply, and that the service soon rejects no more requests."""
        said = await self.says(text, "second", *files)
        assert said.startswith("second "), said
        for _ in range(2):  # the service may reject the request after its own reply
            before = len(self.strict.refusals)
            assert (await self.says("and then?", "second")).startswith("second answers")
            if len(self.strict.refusals) == before:
                return
        raise AssertionError("refused again and again")


async def a_picture(place: Place) -> None:
    await place.heals("look", PICTURE)


async def a_picture_of_the_past(place: Place) -> None:
    await place.says("look", "first", PICTURE)
    await place.heals()


async def a_picture_after_text(place: Place) -> None:
    await place.heals()
    await place.heals("look", PICTURE)


async def a_picture_in_a_result(place: Place) -> None:
    await place.says("please look", "first")
    await place.heals("please look")


async def thinking_of_another_model(place: Place) -> None:
    await place.says("please think", "first")
    await place.heals()
    assert all(b"a thought of first" not in seen.body for seen in place.second.log)


async def thinking_before_a_call(place: Place) -> None:
    await place.heals("please call")


async def thinking_of_both(place: Place) -> None:
    for model in ("first", "second", "first"):
        await place.says("please think", model)
    await place.heals("please call")
    assert all(b"a thought of first" not in seen.body for seen in place.second.log)


async def a_call_of_another_model(place: Place) -> None:
    await place.says("please call", "first")
    await place.heals()


async def calls_at_once(place: Place) -> None:
    await place.says("please call twice", "first")
    await place.heals("please call twice")


async def two_messages_in_a_row(place: Place) -> None:
    await place.says("please fail", "first")
    await place.says("please fail", "second")
    await place.heals()


async def words_after_a_result(place: Place) -> None:
    await place.says("please call and fail", "first")
    await place.heals()


async def all_of_it(place: Place) -> None:
    await place.says("please call twice", "first", PICTURE)
    await place.says("please fail", "first")
    await place.says("please think", "first")
    await place.heals("please call", PICTURE)


BEHAVIOURS: tuple[Callable[[Place], Awaitable[None]], ...] = (
    a_picture,
    a_picture_of_the_past,
    a_picture_after_text,
    a_picture_in_a_result,
    thinking_of_another_model,
    thinking_before_a_call,
    thinking_of_both,
    a_call_of_another_model,
    calls_at_once,
    two_messages_in_a_row,
    words_after_a_result,
    all_of_it,
)


async def broken(service: Service, home: Path, learned: dict[str, Change] | None = None) -> dict[str, str]:
    """Return the rules that fail at this service, with the reason. Quirks learned from rejected requests are added
    to `learned`.
    """
    models, failures = TwoModels(), dict[str, str]()
    async with scenario(home, FakeModel(), models=models, tools=(look,), replays=False) as world:
        world.app[Attachments].fetcher = Shelf(**{"p.png": PNG})
        for number, behaves in enumerate(BEHAVIOURS):
            place, memory = Place(world, service, models), QuirkMemory(None, ManualClock())
            async with place.fresh(number, memory):
                try:
                    await behaves(place)
                except AssertionError as error:
                    failures[behaves.__name__] = str(error)
            if learned is not None:
                for one in memory.all().values():
                    learned.update(one.changes)
    return failures


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda one: one.name)
async def test_after_any_refusal_the_next_message_is_answered(tmp_path: Path, service: Service) -> None:
    assert await broken(service, tmp_path) == {}
