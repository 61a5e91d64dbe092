"""Attachments are downloaded and identified by their bytes. The model sees the file, or a notice with the reason."""

import asyncio
import io
import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from PIL import Image as Picture
from tests import s3
from tests.scenarios.delegation import results

from shoal.kernel.clock import Clock
from shoal.kernel.errors import FetchError, StoreUnavailable
from shoal.kernel.events import UserSaid
from shoal.kernel.home import Home
from shoal.kernel.messages import Attachment, Author, Prompt
from shoal.kernel.ports import Sandbox
from shoal.kernel.settings import ContextSettings
from shoal.net.addresses import Fetched, FetchRequest
from shoal.sandbox.bubblewrap import BubblewrapSandbox
from shoal.sandbox.host import HostSandbox
from shoal.store.store import Store
from shoal.testing.clock import ManualClock
from shoal.testing.model import Call, FakeModel, Gate, Reply, Seen, Step
from shoal.testing.scenario import World, scenario
from shoal.threads.attachments import Attachments
from shoal.threads.orchestrator import Orchestrator
from shoal.tools.tainted_files import MarkedFiles


def png(side: int, *, noisy: bool = False) -> bytes:
    """Return a square picture. A noisy picture does not compress."""
    target = io.BytesIO()
    pixels = os.urandom(side * side * 3) if noisy else bytes(side * side * 3)
    Picture.frombytes("RGB", (side, side), pixels).save(target, "PNG")
    return target.getvalue()


PNG = png(8)
SMALL = {"context": {"attachment_bytes_max": 10_000, "attachment_image_bytes_max": 2000}}


def profiled(side: int) -> bytes:
    """Return a square picture with a color profile that does not compress."""
    target = io.BytesIO()
    Picture.new("RGBA", (side, side)).save(target, "PNG", icc_profile=os.urandom(5_000))
    return target.getvalue()


class Shelf:
    """A web server with a few files. Implements `shoal.net.addresses.Fetcher`."""

    def __init__(self, **files: bytes) -> None:
        self.files = files

    async def fetch(self, request: FetchRequest) -> Fetched:
        name = request.url.rpartition("/")[2]
        if name not in self.files:
            raise FetchError("There is no host there.")
        body = self.files[name]
        return Fetched(request.url, 200, (), body[: request.bytes_max], cut=len(body) > request.bytes_max)


async def sent(world: World, shelf: Shelf, *attachments: Attachment) -> tuple[Attachment, ...]:
    world.app[Attachments].fetcher = shelf
    now = world.app[Clock].now()
    prompt = Prompt(world.ada.thread, "k1", "look", Author("ada", "ada", trusted=True), now, attachments=attachments)
    await world.app[Orchestrator].send(prompt)
    await world.ada.sees("seen")
    return next(event.data.attachments for event in await world.journal() if isinstance(event.data, UserSaid))


def at(name: str, media_type: str = "application/octet-stream") -> Attachment:
    return Attachment(name, media_type, url=f"https://files.example.org/{name}")


async def test_files_that_the_platform_lacks_are_not_fetched(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("seen")) as world:
        refused = Attachment("a.txt", url="https://files.example.org/a.txt", error="It was withdrawn.")
        (file,) = await sent(world, Shelf(**{"a.txt": b"secret"}), refused)
        assert (file.error, file.path) == ("It was withdrawn.", "")


@pytest.mark.slow
async def test_a_message_is_accepted_only_if_every_machine_can_get_its_files(tmp_path: Path) -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(s3.server())
        assert httpx2.put(f"{endpoint}/ours").status_code == 200
        keys = {"access_key": "k", "secret_key": "s", "region": "us-east-1"}
        settings = {"files": {"url": "s3://ours/x", "endpoint": endpoint, **keys}}
        async with scenario(tmp_path, FakeModel("seen"), settings=settings, replays=False) as world:
            thread, now = world.ada.thread, world.app[Clock].now()
            path = world.app[Home].attachments(thread) / "map.txt"
            path.parent.mkdir(parents=True)
            path.write_text("a map")
            stack.close()  # makes the store unavailable
            files, author = (Attachment("map.txt", path=str(path)),), Author("ada", "ada", trusted=True)
            with pytest.raises(StoreUnavailable):
                await world.app[Orchestrator].send(Prompt(thread, "k1", "look", author, now, attachments=files))
            assert await world.app[Store].journal.thread(thread) is None


async def test_an_image_is_shown_under_any_name(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model) as world:
        (kept,) = await sent(world, Shelf(photo=PNG), at("photo", "text/html"))
        assert (kept.media_type, kept.size_bytes, kept.error) == ("image/png", len(PNG), "")
        assert Path(kept.path).read_bytes() == PNG
        assert Path(kept.path).parent == world.app[Home].attachments(world.ada.thread)
        message = model.requests[-1].messages[-1]
        assert kept.path in message.text
        assert [image.path for image in message.images] == [kept.path]  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize("make", [HostSandbox, BubblewrapSandbox])
async def test_commands_and_tools_find_a_file_under_its_announced_name(
    tmp_path: Path, make: Callable[[], Sandbox]
) -> None:
    def script(seen: Seen) -> Step | str:
        named = re.findall(r"text/plain, 5 bytes: (\S+?)\]", seen.user_text)
        if seen.messages[-1].role == "tool":
            return "seen"
        commands = {"command": f"cat {named[0]}"}, {"path": named[0]}
        return Reply(calls=tuple(Call(*one) for one in zip(("bash", "read"), map(json.dumps, commands), strict=True)))

    model = FakeModel(script=script)
    async with scenario(tmp_path, model, sandbox=make()) as world:
        (kept,) = await sent(world, Shelf(notes=b"hello"), at("notes"))
        shown = [result.text for result in await results(world)]
        assert all("hello" in text for text in shown), shown
        assert len(shown) == 2
        is_mapped = make is BubblewrapSandbox
        assert kept.inside == (f"/attachments/{Path(kept.path).name}" if is_mapped else kept.path)
        told = "".join(message.text for request in model.requests for message in request.messages)
        assert (str(tmp_path) in told) is not is_mapped


@pytest.mark.parametrize("picture", [png(40, noisy=True), png(1600)], ids=["heavy", "wide"])
async def test_a_large_image_is_shrunk_for_the_model_and_stored_whole(tmp_path: Path, picture: bytes) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        (kept,) = await sent(world, Shelf(photo=picture), at("photo"))
        assert kept.error == ""
        assert await asyncio.to_thread(Path(kept.path).read_bytes) == picture
        (image,) = model.requests[-1].messages[-1].images  # pyrefly: ignore[missing-attribute]
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
        assert not model.requests[-1].messages[-1].images  # pyrefly: ignore[missing-attribute]


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)


async def test_an_unsupported_image_is_reported_to_the_person(tmp_path: Path) -> None:
    async with scenario(tmp_path, model := FakeModel("seen")) as world:
        (kept,) = await sent(world, Shelf(**{"a_b.heic": HEIC}), at("a_b.heic", "image/heic"))
        assert kept.media_type == "image/heic"
        assert not model.requests[-1].messages[-1].images  # pyrefly: ignore[missing-attribute]
        await world.rests()
        (said,) = world.chat.texts(world.ada.thread)
    assert said == "seen\n\n_I cannot see 'a_b.heic': models do not accept HEIC images; send the image as JPEG or PNG._"


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "ICO", "AVIF", "GIF", "WEBP"])
async def test_images_in_other_formats_are_converted(tmp_path: Path, kind: str) -> None:
    target = io.BytesIO()
    Picture.new("RGB", (16, 16), "red").save(target, kind)
    async with scenario(tmp_path, model := FakeModel("seen")) as world:
        (kept,) = await sent(world, Shelf(photo=target.getvalue()), at("photo"))
        assert not kept.error
        assert len(model.requests[-1].messages[-1].images) == 1  # pyrefly: ignore[missing-attribute]
        assert kept.shown_type in ("image/png", "image/jpeg")


async def test_an_unshrinkable_image_is_a_file_with_a_notice(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        (kept,) = await sent(world, Shelf(photo=profiled(4)), at("photo"))
        assert kept.error == "not shown: an image can be at most 2,000 bytes"


class SlowShelf(Shelf):
    """Blocks each request until the test sets `may_answer`."""

    def __init__(self, **files: bytes) -> None:
        super().__init__(**files)
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def fetch(self, request: FetchRequest) -> Fetched:
        self.asked.set()
        await self.may_answer.wait()
        return await super().fetch(request)


async def test_a_turn_does_not_wait_for_a_slow_file_forever(tmp_path: Path) -> None:
    model, clock = FakeModel("seen"), ManualClock()
    shelf = SlowShelf(notes=b"hello")
    async with scenario(tmp_path, model, clock=clock) as world:
        world.app[Attachments].fetcher = shelf
        files = (at("notes"), at("gone"))
        prompt = Prompt(
            world.ada.thread, "k1", "look", Author("ada", "ada", trusted=True), clock.now(), attachments=files
        )
        await world.app[Orchestrator].send(prompt)
        await shelf.asked.wait()
        while not model.requests:
            await clock.advance_to_next()
        text = model.requests[-1].messages[-1].text
        places = [Path(found) for found in re.findall(r"it will be at (\S+?)[\]\n]", text)]
        assert len(places) == 2
        shelf.may_answer.set()
        await world.app[Attachments].join()
        assert await asyncio.to_thread(places[0].read_text) == "hello"
        assert "not downloaded: There is no host there." in await asyncio.to_thread(places[1].read_text)


async def test_a_download_starts_while_an_earlier_turn_runs(tmp_path: Path) -> None:
    shelf = SlowShelf(notes=b"hello")
    gate = Gate()
    async with scenario(tmp_path, FakeModel(Reply("one", gate=gate), "second answer")) as world:
        world.app[Attachments].fetcher = shelf
        await world.ada.says("first")
        await gate.reached.wait()
        now = world.app[Clock].now()
        prompt = Prompt(
            world.ada.thread, "k2", "look", Author("ada", "ada", trusted=True), now, attachments=(at("notes"),)
        )
        await world.app[Orchestrator].send(prompt)
        await shelf.asked.wait()
        shelf.may_answer.set()
        gate.open()
        await world.ada.sees("second answer")


class HeldShelf(Shelf):
    """Blocks requests for files named after a crate. `asked` lists the requested names in order."""

    def __init__(self, **files: bytes) -> None:
        super().__init__(**files)
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def fetch(self, request: FetchRequest) -> Fetched:
        name = request.url.rpartition("/")[2]
        self.asked.append(name)
        if name.startswith("crate"):
            await self.may_answer.wait()
        return await super().fetch(request)


async def test_a_threads_downloads_are_sequential_and_do_not_delay_other_threads(tmp_path: Path) -> None:
    crates = {f"crate{number}": b"full" for number in range(6)}
    shelf = HeldShelf(**crates, notes=b"hello")
    async with scenario(tmp_path, FakeModel("seen", "seen too")) as world:
        world.app[Attachments].fetcher = shelf
        now, author = world.app[Clock].now(), Author("ada", "ada", trusted=True)
        files = tuple(at(name) for name in crates)
        await world.app[Orchestrator].send(Prompt(world.ada.thread, "k1", "look", author, now, attachments=files))
        other = world.person("ada", "2")
        notes = Prompt(other.thread, "k2", "and here", author, now, attachments=(at("notes"),))
        await world.app[Orchestrator].send(notes)
        await other.sees("seen")
        assert shelf.asked == ["crate0", "notes"]
        shelf.may_answer.set()
        await world.ada.sees("seen too")
        assert shelf.asked == ["crate0", "notes", *[*crates][1:]]


async def test_an_interrupted_download_restarts(tmp_path: Path) -> None:
    clock, home = ManualClock(), Home(tmp_path / "files")
    async with scenario(tmp_path, FakeModel("seen")) as world:
        marked = MarkedFiles(world.app[Store].settings, home)
        first, again = SlowShelf(notes=b"hello"), Shelf(notes=b"hello")
        attachments = Attachments(home, first, ContextSettings(), clock, marked)
        author = Author("ada", "ada", trusted=True)
        prompt = Prompt(world.ada.thread, "k1", "look", author, clock.now(), attachments=(at("notes"),))
        attachments.expect(prompt)
        running = asyncio.create_task(attachments.run())
        await first.asked.wait()
        running.cancel()
        await asyncio.wait([running])
        attachments.fetcher = again
        running = asyncio.create_task(attachments.run())
        await attachments.join()
        taken = await attachments.take(prompt, str, "main", author.asker(prompt.thread))
        running.cancel()
        await asyncio.wait([running])
    assert await asyncio.to_thread(Path(taken.attachments[0].path).read_bytes) == b"hello"


async def test_a_text_file_is_quoted_from_its_beginning(tmp_path: Path) -> None:
    model = FakeModel("seen")
    async with scenario(tmp_path, model) as world:
        (kept,) = await sent(world, Shelf(notes=b"first line\n" + b"more\n" * 1000), at("notes", "text/markdown"))
        assert kept.media_type == "text/markdown"
        text = model.requests[-1].messages[-1].text
        assert "first line" in text
        assert "the rest is in the file" in text
        assert len(text) < 3000


async def test_an_unacceptable_file_is_reported_and_the_turn_continues(tmp_path: Path) -> None:
    model = FakeModel("seen")
    shelf = Shelf(huge=b"x" * 20_000, tool=b"\x7fELF\0\0\0")
    async with scenario(tmp_path, model, settings=SMALL) as world:
        kept = await sent(world, shelf, at("huge"), at("tool"), at("gone"))
        assert [one.error for one in kept] == [
            "not downloaded: it is larger than 10,000 bytes",
            "not stored: executable files are not accepted",
            "not downloaded: There is no host there.",
        ]
        assert not any(one.path for one in kept)
        text = model.requests[-1].messages[-1].text
        assert all(one.error in text for one in kept)


async def test_a_file_name_cannot_escape_its_folder(tmp_path: Path) -> None:
    async with scenario(tmp_path, FakeModel("seen")) as world:
        file = Attachment("../../x", url="https://files.example.org/notes")
        (kept,) = await sent(world, Shelf(notes=b"hello"), file)
        assert Path(kept.path).resolve().parent == world.app[Home].attachments(world.ada.thread).resolve()
