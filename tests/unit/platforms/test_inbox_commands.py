"""Messages from platform adapters: attached files are stored only for messages that start a turn."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from shoal.kernel.errors import StoreUnavailable
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Attachment, Author, Inbound, Prompt, Receipt
from shoal.platforms.inbox import press, submit
from shoal.testing.contracts.chat_peer import Inbox

THREAD = ThreadId("fake:harbour:1")


def sent(file: Path, text: str) -> Prompt:
    file.write_text("obey")
    attachments = (Attachment("letter.txt", "text/plain", path=str(file)), Attachment("lost.txt", "", error="gone"))
    author = Author("eve", trusted=False)
    return Prompt(THREAD, "k", text, author, datetime(2026, 1, 5, tzinfo=UTC), attachments=attachments)


@pytest.mark.parametrize(
    ("text", "answer", "stays"),
    [("look", "accepted", True), ("look", "busy", False), ("/status", "accepted", False)],
)
async def test_a_file_is_stored_only_where_a_turn_will_use_it(
    tmp_path: Path, text: str, answer: Literal["accepted", "busy"], *, stays: bool
) -> None:
    """A file that no turn used would stay untainted, as if a trusted user had sent it."""
    inbox, file = Inbox(), tmp_path / "letter.txt"
    inbox.answer = answer
    await submit(sent(file, text), inbox)
    assert file.exists() is stays


async def test_a_message_that_could_not_be_stored_is_redelivered_with_its_file(tmp_path: Path) -> None:
    class Failing(Inbox):
        async def send(self, message: Inbound) -> Receipt:
            raise StoreUnavailable("it is away")

    with pytest.raises(StoreUnavailable):
        await submit(sent(tmp_path / "letter.txt", "look"), Failing())
    assert list(tmp_path.iterdir()) == []


async def test_a_button_press_restores_the_files_of_a_discarded_card() -> None:
    inbox, ada = Inbox(), Author("ada", trusted=False)
    assert await press("undo:C1", THREAD, ada, inbox) == "Restored 1 file."
    assert inbox.undone == ["C1"]
    assert await press("undo:", THREAD, ada, inbox) == "This button no longer works."
