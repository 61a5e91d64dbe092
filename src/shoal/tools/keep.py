"""Copies a file that a message or a model will need later to where no tool can change it."""

import hashlib
import os
import re
import secrets
from pathlib import Path

from shoal.domain.home import Home
from shoal.domain.ids import ThreadId

FOLDER = "kept"
_UNSAFE = re.compile(r"[^\w.() -]+")


def keep_copy(home: Home, thread: ThreadId, name: str, content: bytes) -> Path:
    """Store `content` below the thread's directory, by digest, under a safe form of `name`; returns the path.

    The same content under the same name is stored once. Blocks; raises OSError.
    """
    folder = home.thread(thread) / FOLDER / hashlib.sha256(content).hexdigest()[:32]
    path = folder / (_UNSAFE.sub("_", name).strip(". ")[:120] or "file")
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{secrets.token_hex(6)}"
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return path
