"""Thread ids: every part survives a round trip and is safe as a directory name."""

import random
from collections.abc import Generator
from contextlib import contextmanager

from shoal.kernel.errors import InvalidId
from shoal.kernel.ids import decode_part, encode_part, make_thread_id, parse_thread_id, thread_address
from tests.fuzz.inputs import any_text
from tests.fuzz.target import Attempt


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    parts = [any_text(source, 4) for _ in range(3)]
    for part in parts:
        encoded = encode_part(part)
        assert decode_part(encoded) == part
        assert encoded not in (".", "..")
        assert not set(encoded) & set("/\\:\0\n")
    try:
        thread_id = make_thread_id(*parts)
    except InvalidId:
        thread_id = None
    if thread_id is not None:
        parsed = thread_address(thread_id)
        assert [parsed.platform, parsed.channel, parsed.thread] == parts
    text = source.choice([":".join(parts), any_text(source, 8), f"a:{any_text(source, 3)}:b"])
    try:
        thread = parse_thread_id(text)
    except InvalidId:
        return
    address = thread_address(thread)
    assert make_thread_id(address.platform, address.channel, address.thread) == thread
