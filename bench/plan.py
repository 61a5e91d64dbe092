"""What is asked of Shoal, and of the bare client: blocks of turns in threads, some one after another, some at once."""

from typing import NamedTuple

import msgspec

PLAIN = (
    "Please note this down and answer shortly: the quick brown fox jumps over the lazy dog, again and again, until the "
    "dog wakes up and runs after it. words=30"
)
TOOLS = 'run it tools=10 tool=bash args={"command":"true"}'


class Block(NamedTuple):
    """`turns` messages in each of `threads` threads; the threads go at once."""

    thread: str
    text: str
    turns: int
    threads: int = 1


class Measured(msgspec.Struct, frozen=True):
    """What one block took: milliseconds a turn, and replies that were not those to their messages."""

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
"""Of one thread's 500 turns, three blocks count: 6 to 15, 91 to 110, 491 to 500."""
HISTORY_AT = {10: 2, 100: 4, 500: 6}
FAN = (Block("warm", PLAIN, 5), Block("fan", PLAIN, 5, threads=200))
