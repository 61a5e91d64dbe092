"""Memory directories that are synchronized between machines."""

from collections.abc import Callable, Iterator

from shoal.kernel.files import FollowedFolder
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId
from shoal.kernel.memory_files import MEMORY_FILE, MEMORY_SCOPES, memory_path
from shoal.tools.manifests import everything


def memory_folders(home: Home) -> Callable[[ThreadId], Iterator[FollowedFolder]]:
    marked = (home.root,)  # copy taint marks too, because prompts contain these files (tools/prompt_files.py)

    def folders(thread: ThreadId) -> Iterator[FollowedFolder]:
        yield FollowedFolder("notes", home.data / "memory", everything, marked, is_silent=True)
        for scope in MEMORY_SCOPES:
            root = memory_path(home, scope, thread).parent
            name = "/".join(root.relative_to(home.data).parts)
            yield FollowedFolder(f"memory {name}".rstrip(), root, _is_memory, marked, is_silent=True)

    return folders


def _is_memory(name: str) -> bool:
    """Match MEMORY.md and conflicting copies of it, whose names have a suffix."""
    return name.startswith(MEMORY_FILE)
