"""Directories of memory that follow threads between machines."""

from collections.abc import Callable, Iterator

from shoal.kernel.files import FollowedFolder
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.memory_files import MEMORY_FILE, MEMORY_SCOPES, memory_path
from shoal.tools.manifests import everything


def memory_folders(home: Home) -> Callable[[ThreadId], Iterator[FollowedFolder]]:
    """Return a function that lists a thread's memory folders: the daily notes and the folders of MEMORY.md."""
    marked = (home.root,)  # these files are part of prompts (tools/prompt_files.py)

    def folders(thread: ThreadId) -> Iterator[FollowedFolder]:
        yield FollowedFolder("notes", home.data / "memory", everything, marked, is_silent=True)
        for scope in MEMORY_SCOPES:
            root = memory_path(home, scope, thread).parent
            name = "/".join(root.relative_to(home.data).parts)
            yield FollowedFolder(f"memory {name}".rstrip(), root, _is_memory, marked, is_silent=True)

    return folders


def _is_memory(name: str) -> bool:
    """Return whether a name is MEMORY.md or a conflicting copy of it."""
    return name.startswith(MEMORY_FILE)
