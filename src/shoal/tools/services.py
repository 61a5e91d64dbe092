"""What tools may ask of the rest of Shoal, in a running one."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shoal.domain.clock import Clock
from shoal.domain.files import Files
from shoal.domain.home import Home
from shoal.domain.records import MemoryEdit, NewPost
from shoal.domain.triggers import NewTrigger, Trigger, first_time
from shoal.store.store import Store
from shoal.tools.memory_book import MemoryBook
from shoal.tools.tainted_files import PromptFiles


@dataclass
class LiveToolServices:
    """Implements `domain.ports.ToolServices`; `ring` says that a trigger was added."""

    store: Store
    home: Home
    clock: Clock
    files: PromptFiles
    artifacts: Files
    send: Callable[[NewPost], Awaitable[None]]
    ring: Callable[[], None]

    def __post_init__(self) -> None:
        self.memory = MemoryBook(self.home, self.store, self.clock, self.files)

    async def post(self, post: NewPost) -> None:
        """Put a message or file into the outbox."""
        await self.send(post)

    async def add_trigger(self, trigger: NewTrigger) -> Trigger:
        """Schedule a turn. Raises InvalidInput on a schedule that never comes."""
        added = await self.store.triggers.add(trigger, first_time(trigger, self.clock.now()))
        self.ring()
        return added

    async def change_memory(self, edit: MemoryEdit) -> bool:
        """Change a memory file. Raises what `MemoryBook.change` does."""
        return await self.memory.change(edit) is not None
