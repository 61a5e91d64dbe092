"""Edits that arrive before their message are stored for a while and applied only if the author matches."""

from pathlib import Path

import msgspec

from shoal.kernel.ids import make_thread_id
from shoal.kernel.messages import Attachment, Author, Deletion, Edit, Prompt
from shoal.platforms.inbox import PENDING_EDITS_MAX, PendingEdits
from shoal.testing.clock import START
from shoal.testing.contracts.chat_peer import Inbox

THREAD = make_thread_id("slack", "C1", "0")
ADA = Author("ada", trusted=False)


def prompt(key: str, author: Author = ADA) -> Prompt:
    return Prompt(THREAD, key, "low tide", author, START)


def edit(key: str) -> Edit:
    return Edit(THREAD, key, "high tide", ADA)


async def test_the_oldest_pending_edits_are_dropped_beyond_the_bound() -> None:
    pending = PendingEdits()
    for number in range(PENDING_EDITS_MAX + 1):
        await pending.send(edit(f"k{number}"), Inbox())
    texts = [found.text for key in ("k0", "k1") if (found := pending.apply(prompt(key))) is not None]
    assert texts == ["low tide", "high tide"]


async def test_a_change_of_a_known_message_goes_to_its_thread() -> None:
    pending, inbox = PendingEdits(), Inbox()
    there = make_thread_id("slack", "C1", "77")
    await inbox.send(msgspec.structs.replace(prompt("k"), thread=there))
    await pending.send(edit("k"), inbox)
    assert inbox.came[1:] == [msgspec.structs.replace(edit("k"), thread=there)]
    assert pending.apply(prompt("k")) == prompt("k")


async def test_an_edit_by_another_author_is_ignored() -> None:
    pending = PendingEdits()
    await pending.send(edit("k"), Inbox())
    mine = prompt("k", Author("bea", trusted=False))
    assert pending.apply(mine) == mine


async def test_a_message_deleted_before_it_arrives_is_dropped() -> None:
    pending = PendingEdits()
    await pending.send(Deletion(THREAD, "k", ADA), Inbox())
    assert pending.apply(prompt("k")) is None


async def test_files_of_a_message_deleted_before_arrival_are_removed(tmp_path: Path) -> None:
    file, pending = tmp_path / "letter.txt", PendingEdits()
    file.write_text("obey")
    await pending.send(Deletion(THREAD, "k", ADA), Inbox())
    attachments = (Attachment("letter.txt", "text/plain", path=str(file)),)
    assert pending.apply(msgspec.structs.replace(prompt("k"), attachments=attachments)) is None
    assert not file.exists()


async def test_an_early_edit_with_untrusted_words_taints_the_later_message() -> None:
    pending = PendingEdits()
    await pending.send(msgspec.structs.replace(edit("k"), tainted_by="a forwarded message"), Inbox())
    found = pending.apply(prompt("k"))
    assert found is not None
    assert found.tainted_by == "a forwarded message"
