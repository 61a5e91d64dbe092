"""Token counts in the form that a provider reports. Cached tokens are computed from the common prefixes of prompts."""

from collections import OrderedDict

from shoal.kernel.messages import Usage

BYTES_PER_TOKEN = 4
THREADS_MAX = 4096
MARK = b',"cache_control":{"type":"ephemeral"}'


def shared_prefix_bytes(left: bytes, other: bytes) -> int:
    low, high = 0, min(len(left), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PromptCache:
    """The last prompt of each thread. Only the THREADS_MAX most recently used threads are kept."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()

    def implicit(self, key: str, prompt: bytes) -> tuple[int, int]:
        """Return the number of tokens in the prompt, and the number of cached tokens.

        The cached part is the common prefix with the previous prompt of the thread.
        """
        before = self._swap(key, (prompt,))
        shared = shared_prefix_bytes(before[0], prompt) if before else 0
        return len(prompt) // BYTES_PER_TOKEN, shared // BYTES_PER_TOKEN

    def explicit(self, key: str, marked: bytes) -> tuple[int, int, int]:
        """Return the number of tokens in a prompt, the number read from the cache, and the number written to it. Only
        prefixes that end at a cache mark are cached.
        """
        parts = marked.split(MARK)
        prompt = b"".join(parts)
        ends: list[int] = []
        for part in parts[:-1]:
            ends.append((ends[-1] if ends else 0) + len(part))
        prefixes = tuple(prompt[:end] for end in ends)
        before = self._swap(key, prefixes)
        last = ends[-1] if ends else 0
        read = max((len(old) for old in before if prompt.startswith(old) and len(old) <= last), default=0)
        tokens = len(prompt) // BYTES_PER_TOKEN
        return tokens, read // BYTES_PER_TOKEN, (last - read) // BYTES_PER_TOKEN

    def _swap(self, key: str, new: tuple[bytes, ...]) -> tuple[bytes, ...]:
        before = self._prompts.pop(key, ())
        self._prompts[key] = new
        if len(self._prompts) > THREADS_MAX:
            self._prompts.popitem(last=False)
        return before


def count(text: str) -> int:
    """Return the number of tokens in an answer, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def add_output(input_tokens: int, cached: int, written: int, output: int, reasoning: int) -> Usage:
    """Return a `Usage` whose output tokens include the reasoning tokens."""
    return Usage(input_tokens, output + reasoning, cached, written, reasoning)
