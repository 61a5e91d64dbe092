"""Files that come with messages: fetched, told apart by their bytes, shown or not, and why."""

import asyncio
import io
import os
import re
from pathlib import Path

import pytest
from PIL import Image as Picture

from shoal.domain.errors import FetchError
from shoal.domain.events import UserSaid
from shoal.domain.messages import Attachment, Author, Prompt
from shoal.domain.web import Fetched, FetchRequest
from shoal.testing.clock import ManualClock
from shoal.testing.model import FakeModel, Gate, Reply
from shoal.testing.scenario import World, scenario


def png(side: int, *, noisy: bool = False) -> bytes:
    """A square picture; a noisy one does not shrink when it is packed."""
    target = io.BytesIO()
    pixels = os.urandom(side * side * 3) if noisy else bytes(side * side * 3)
    Picture.frombytes("RGB", (side, side), pixels).save(target, "PNG")
    return target.getvalue()


PNG = png(8)
SMALL = {"context": {"attachment_bytes_max": 10_000, "attachment_image_bytes_max": 2000}}


class Shelf:
    """A web of a few files. Implements `domain.web.Fetcher`."""

    def __init__(self, **files: bytes) -> None:
        self.files = files

    async def fetch(self, request: FetchRequest) -> Fetched:
        """The file whose name ends the address."""
        name = request.url.rpartition("/")[2]
        if name not in self.files:
            raise FetchError("There is no host there.")
        body = self.files[name]
        return Fetched(request.url, 200, (), body[: request.bytes_max], cut=len(body) > request.bytes_max)


async def sent(world: World, shelf: Shelf, *attachments: Attachment) -> tuple[Attachment, ...]:
    """Send them with a message, wait for the answer, and return them as the journal has them."""
    world.app.attachments.fetcher = shelf
    now = world.app.clock.now()
    prompt = Prompt(world.ada.thread, "k1", "look", Author("ada", "ada", trusted=True), now, attachments=attachments)
    await world.app.orchestrator.send(prompt)
    await world.ada.sees("seen")
    return next(event.data.attachments for event in await world.journal() if isinstance(event.data, UserSaid))


def at(name: str, media_type: str = "application/octet-stream") -> Attachment:
    """A file of the shelf."""
    return Attachment(name, media_type, url=f"https://files.example.org/{name}")


async def test_an_image_is_shown_whatever_it_is_called(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model) as world:
        (kept,) = await sent(world, Shelf(photo=PNG), at("photo", "text/html"))
        assert (kept.media_type, kept.size_bytes, kept.error) == ("image/png", len(PNG), "")
        assert Path(kept.path).read_bytes() == PNG
        assert Path(kept.path).parent == world.app.home.attachments(world.ada.thread)
        message = model.requests[-1].messages[-1]
        assert kept.path in message.text
        assert [image.path for image in message.images] == [kept.path]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("picture", [png(40, noisy=True), png(1600)], ids=["heavy", "wide"])
async def test_a_large_image_is_shown_smaller_and_kept_whole(tmp_path: Path, picture: bytes) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        (kept,) = await sent(world, Shelf(photo=picture), at("photo"))
        assert kept.error == ""
        assert await asyncio.to_thread(Path(kept.path).read_bytes) == picture
        (image,) = model.requests[-1].messages[-1].images  # pyright: ignore[reportAttributeAccessIssue]
        assert image.path == kept.shown != kept.path
        shown = await asyncio.to_thread(Path(image.path).read_bytes)
        assert len(shown) <= 2000
        with Picture.open(io.BytesIO(shown)) as smaller:
            assert max(smaller.size) <= 1568


async def test_a_damaged_image_is_a_file_with_a_notice(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        (kept,) = await sent(world, Shelf(photo=PNG[:40]), at("photo"))
        assert kept.error == "not shown: it is damaged"
        assert Path(kept.path).exists()
        assert kept.error in model.requests[-1].messages[-1].text
        assert not model.requests[-1].messages[-1].images  # pyright: ignore[reportAttributeAccessIssue]


class SlowShelf(Shelf):
    """Answers when it is told to."""

    def __init__(self, **files: bytes) -> None:
        super().__init__(**files)
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def fetch(self, request: FetchRequest) -> Fetched:
        self.asked.set()
        await self.may_answer.wait()
        return await super().fetch(request)


async def test_a_turn_does_not_wait_for_a_slow_file_for_ever(tmp_path: Path) -> None:
    model, clock = FakeModel("seen"), ManualClock()
    shelf = SlowShelf(notes=b"hello")
    async with scenario(tmp_path, model, clock=clock) as world:
        world.app.attachments.fetcher = shelf
        files = (at("notes"), at("gone"))
        prompt = Prompt(
            world.ada.thread, "k1", "look", Author("ada", "ada", trusted=True), clock.now(), attachments=files
        )
        await world.app.orchestrator.send(prompt)
        await shelf.asked.wait()
        while not model.requests:
            await clock.advance_to_next()
        text = model.requests[-1].messages[-1].text
        places = [Path(found) for found in re.findall(r"it will be at (\S+?)[\]\n]", text)]
        assert len(places) == 2
        shelf.may_answer.set()
        await world.app.attachments.settled()
        assert await asyncio.to_thread(places[0].read_text) == "hello"
        assert "could not be downloaded: There is no host there." in await asyncio.to_thread(places[1].read_text)


async def test_a_download_begins_while_an_earlier_turn_runs(tmp_path: Path) -> None:
    shelf = SlowShelf(notes=b"hello")
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("one", gate=gate), "second answer")) as world:
        world.app.attachments.fetcher = shelf
        await world.ada.says("first")
        await gate.reached.wait()
        now = world.app.clock.now()
        prompt = Prompt(
            world.ada.thread, "k2", "look", Author("ada", "ada", trusted=True), now, attachments=(at("notes"),)
        )
        await world.app.orchestrator.send(prompt)
        await shelf.asked.wait()
        shelf.may_answer.set()
        gate.open()
        await world.ada.sees("second answer")


async def test_a_text_file_comes_with_its_beginning(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model) as world:
        (kept,) = await sent(world, Shelf(notes=b"first line\n" + b"more\n" * 1000), at("notes", "text/markdown"))
        assert kept.media_type == "text/markdown"
        text = model.requests[-1].messages[-1].text
        assert "first line" in text
        assert "the rest is in the file" in text
        assert len(text) < 3000


async def test_what_cannot_be_taken_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    model = FakeModel("seen")
    shelf = Shelf(huge=b"x" * 20_000, tool=b"\x7fELF\0\0\0")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        kept = await sent(world, shelf, at("huge"), at("tool"), at("gone"))
        assert [one.error for one in kept] == [
            "could not be downloaded: it is larger than 10,000 bytes",
            "not kept: it is a program",
            "could not be downloaded: There is no host there.",
        ]
        assert not any(one.path for one in kept)
        text = model.requests[-1].messages[-1].text
        assert all(one.error in text for one in kept)


async def test_a_name_cannot_lead_elsewhere(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("seen")) as world:
        file = Attachment("../../x", url="https://files.example.org/notes")
        (kept,) = await sent(world, Shelf(notes=b"hello"), file)
        assert Path(kept.path).resolve().parent == world.app.home.attachments(world.ada.thread).resolve()
