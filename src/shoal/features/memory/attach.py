"""Register memory with the core."""

from typing import TYPE_CHECKING

from shoal.features.memory.book import MemoryBook
from shoal.features.memory.folders import memory_folders
from shoal.features.memory.pages import memory_folder
from shoal.features.memory.prompt import memory_part
from shoal.features.memory.store import CHANGES
from shoal.features.memory.taint import retained_memory, retained_note
from shoal.kernel.files import Folders
from shoal.kernel.home import Home
from shoal.store.store import Store
from shoal.tools.executor import LiveToolServices
from shoal.tools.prompt_files import PromptFiles
from shoal.turn.context import ContextBuilder

if TYPE_CHECKING:
    from shoal.services import Services


def attach(services: "Services") -> None:
    context, home = services[ContextBuilder], services[Home]
    context.prompts.parts.append(memory_part(home, context.settings.daily_notes_days))
    services[LiveToolServices].virtual_folders.append(memory_folder(services[MemoryBook].change))
    services[PromptFiles].keeps |= {"memory": retained_memory, "note": retained_note}
    services[Folders].follow(memory_folders(home))
    services[Store].bookkeeping.walks.append(CHANGES)
