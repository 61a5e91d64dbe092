"""Chats whose ids change: reports in any order, repeated, from two processes, and across restarts."""

from shoal.kernel.moved import MovedChats, ids_of
from shoal.testing.contracts.chat_peer import MemorySettings


async def test_a_moved_chat_keeps_its_first_id_and_is_reached_by_its_newest() -> None:
    chats = MovedChats("fake", MemorySettings())
    assert await chats.note("a", "b")
    assert await chats.note("b", "c")
    assert [chats.first_id(one) for one in "abcx"] == ["a", "a", "a", "x"]
    assert [chats.newest_id(one) for one in "abcx"] == ["c", "c", "c", "x"]


async def test_a_repeated_move_is_reported_once() -> None:
    kept = MemorySettings()
    chats, other = MovedChats("fake", kept), MovedChats("fake", kept)
    assert [await one.note("a", "b") for one in (chats, chats, other)] == [True, False, False]
    assert other.first_id("b") == "a", "who hears of it late knows it all the same"
    assert not await chats.note("b", "a"), "nothing moves back"


async def test_moves_survive_a_restart() -> None:
    kept = MemorySettings()
    for old, new in (("a", "b"), ("b", "c")):
        chats = MovedChats("fake", kept)
        await chats.load()
        await chats.note(old, new)
    again = MovedChats("fake", kept)
    await again.load()
    assert (again.first_id("c"), again.newest_id("a")) == ("a", "c")
    assert await ids_of(kept, "fake", "a") == ("a", "b", "c")
    assert await ids_of(kept, "fake", "x") == ("x",)
