"""Changes that come before their message, where a platform makes a call of each event and promises no order."""

from collections import OrderedDict

import msgspec

from shoal.chat.kept import remove_files
from shoal.domain.messages import Deletion, Edit, Prompt
from shoal.domain.ports import InboxPort

EARLY_MAX = 200


class Early:
    """Changes of messages that did not come yet; the newest of each, of the last `EARLY_MAX` messages."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Edit | Deletion] = OrderedDict()

    async def send(self, change: Edit | Deletion, inbox: InboxPort) -> None:
        """Send a change to the thread that its message went to, of which it names the channel; keep it if none did yet.

        Raises StoreError.
        """
        thread = await inbox.thread_of(f"{change.thread.rpartition(':')[0]}:", "", change.key)
        if thread is None:
            self.keep(change)
        else:
            await inbox.send(msgspec.structs.replace(change, thread=thread))

    def keep(self, change: Edit | Deletion) -> None:
        """Keep a change of a message that did not come yet."""
        self._kept[change.key] = change
        self._kept.move_to_end(change.key)
        while len(self._kept) > EARLY_MAX:
            self._kept.popitem(last=False)

    def applied(self, prompt: Prompt) -> Prompt | None:
        """A message as its author has it since; None where it was deleted, and its files with it."""
        change = self._kept.get(prompt.key)
        if isinstance(change, Deletion):
            remove_files(prompt)
            return None
        if change is None or change.author.id != prompt.author.id:
            return prompt
        return msgspec.structs.replace(prompt, text=change.text, tainted_by=prompt.tainted_by or change.tainted_by)
