"""The turns to run, for Shoal and for the bare client: blocks of turns in one thread or in concurrent threads."""

from typing import NamedTuple

import msgspec

PLAIN = (
    "Please note this down and answer shortly: the quick brown fox jumps over the lazy dog, again and again, until the "
    "dog wakes up and runs after it. words=30"
)
TOOLS = 'run it tools=10 tool=bash args={"command":"true"}'


class Block(NamedTuple):
    """A block of `turns` messages in each of `threads` concurrent threads."""

    thread: str
    text: str
    turns: int
    threads: int = 1


class Measured(msgspec.Struct, frozen=True):
    """The result of a block: milliseconds per turn, and the number of wrong replies."""

    cpu_ms: float
    wall_ms: float
    lost: int


WARM = (Block("warm", PLAIN, 5), Block("warm", TOOLS, 1))
TURNS = (*WARM, Block("plain", PLAIN, 20), Block("tools", TOOLS, 5))
HISTORY = (
    Block("warm", PLAIN, 5),
    Block("long", PLAIN, 5),
    Block("long", PLAIN, 10),
    Block("long", PLAIN, 75),
    Block("long", PLAIN, 20),
    Block("long", PLAIN, 380),
    Block("long", PLAIN, 10),
)
"""500 turns in one thread. Only three blocks are measured: turns 6 to 15, 91 to 110, and 491 to 500."""
HISTORY_AT = {10: 2, 100: 4, 500: 6}
FAN = (Block("warm", PLAIN, 5), Block("fan", PLAIN, 5, threads=200))
