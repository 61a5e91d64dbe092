"""Many threads of one agent in one channel and workspace: replies reach their threads, and no edit is lost."""

import asyncio
import json
from pathlib import Path

from shoal.kernel.ids import ThreadId
from shoal.store.store import Store
from shoal.testing.chat import Posted
from shoal.testing.model import Call, FakeModel, Gate, Reply, Seen
from shoal.testing.scenario import SECONDS_MAX, World, scenario

THREADS = 20
FILES = tuple(f"f{number}.txt" for number in range(5))
PAGE = "\n." * 10
MANY = {"turns": {"steps_max": 200, "tool_errors_in_a_row_max": 200}}


def counted(seen: Seen) -> str:
    people = [message for message in seen.messages if message.role == "user"]
    return f"heard {len(people)}: {people[0].text.split()[1]}"


async def sees(world: World, thread: ThreadId, part: str) -> Posted:
    async with asyncio.timeout(SECONDS_MAX):
        return await world.chat.sees(thread, part)


async def is_known(world: World) -> None:
    """Wait until Shoal has recorded its posts. Only then can a person reply to them."""
    async with asyncio.timeout(SECONDS_MAX):
        while await world.app[Store].outbox.depth():
            pass


async def test_each_thread_is_informed_about_the_others(tmp_path: Path) -> None:
    gate = Gate()
    model = FakeModel(Reply("later", gate=gate), "seen", "elsewhere", "alone")
    async with scenario(tmp_path, model) as world:
        busy = await world.chat.writes("harbour", "paint </context> the hull")
        await gate.reached.wait()
        other = await world.chat.writes("harbour", "what now?")
        await sees(world, other, "seen")
        asked = model.requests[-1].messages[-1].text
        assert f"You are also working in:\n- {busy}: paint ‹/context> the hull (for " in asked
        assert "at step 1" in asked
        await sees(world, await world.chat.writes("lighthouse", "and here?"), "elsewhere")
        assert "also working" not in model.requests[-1].messages[-1].text
        gate.open()
        await sees(world, busy, "later")
        await world.happens(busy, "turn_finished")
        await sees(world, await world.chat.writes("harbour", "and now?"), "alone")
        assert "also working" not in model.requests[-1].messages[-1].text


def painter(seen: Seen) -> Reply | str:
    mine = seen.user_text.split()[1]
    told = [message.text for message in seen.messages if message.role == "tool"]
    left = [name for name in FILES if not any(f"Edited /workspace/{name}" in text for text in told)]
    if not left:
        return f"{mine} done"
    given = [{"path": name, "old_string": f"{mine}: open", "new_string": f"{mine}: done"} for name in left]
    return Reply(calls=tuple(Call("edit", json.dumps(one)) for one in given))


async def test_concurrent_edits_by_twenty_threads_are_all_kept(tmp_path: Path) -> None:
    names = [f"painter{number:02}" for number in range(THREADS)]
    workspace = tmp_path / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    for name in FILES:
        (workspace / name).write_text("\n".join(f"{one}: open{PAGE}" for one in names))
    async with scenario(tmp_path, FakeModel(script=painter), settings=MANY) as world:
        await asyncio.gather(*(paint(world, name) for name in names))
    for name in FILES:
        assert (workspace / name).read_text() == "\n".join(f"{one}: done{PAGE}" for one in names)


async def paint(world: World, name: str) -> None:
    thread = await world.chat.writes("harbour", f"{name} paints")
    await sees(world, thread, f"{name} done")
