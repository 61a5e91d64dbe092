"""Quantized embeddings, their similarity, and a similarity threshold.

The similarity of unrelated texts depends on the texts and the model: one model gives cosines of 0.05, another 0.7. Each
query is therefore also compared with a cohort of unrelated sentences. Only passages that are clearly closer than the
cohort are results. Auckenthaler et al. (2000) normalize speaker-verification scores in the same way. The measurements
are in docs/decisions/028-recall.md.
"""

from collections.abc import Sequence
from itertools import combinations
from operator import mul

COHORT = (
    "The volcano on the island has been quiet for three centuries.",
    "A violin has four strings tuned in fifths.",
    "Bees dance to tell the hive where flowers are.",
    "The senate passed the bill by two votes.",
    "Knead the dough for ten minutes and let it rise.",
    "The goalkeeper saved a penalty in the last minute.",
    "Light takes eight minutes to travel from the sun to the earth.",
    "Her grandfather fought in the war and never spoke of it.",
    "A compiler turns source code into machine instructions.",
    "The patient was given antibiotics for an infection of the lung.",
    "Prices rose because the central bank printed money.",
    "The monks copied manuscripts by candlelight.",
    "Camels store fat in their humps.",
    "The train was delayed by snow on the tracks.",
    "Add two and three to get five.",
    "The actress won an award for her first film.",
    "Whales sing to each other across the ocean.",
    "The bridge is made of steel and rests on six pillars.",
    "Please sign the form and send it back by post.",
    "He wore a grey coat and a red scarf.",
    "The desert is hot by day and freezing at night.",
    "Children learn to read at the age of six.",
    "The king was crowned in the cathedral.",
    "Plants need water, light and carbon dioxide to grow.",
    "The thief broke the window and ran away.",
    "A poem need not rhyme.",
    "The hotel has a pool and a view of the mountains.",
    "Electrons carry a negative charge.",
    "My sister bought a new mobile phone yesterday.",
    "The soup needs more salt and a bit of pepper.",
    "Philosophers have argued about free will for ages.",
    "The factory makes screws and bolts.",
)
"""Unrelated sentences for the similarity threshold. All of them must fit in one batch."""
DEVIATIONS = 3.75
"""Minimum similarity of a result, as a number of standard deviations above the cohort's mean."""
SMALLEST = 1e-300
"""Minimum scale for quantizing. Prevents a division by zero for a vector of zeros."""
# Translates a signed byte to the digit 1 if it is negative, otherwise to 0.
_SIGNS = bytes(49 if byte > 127 else 48 for byte in range(256))


class Floor:
    """Similarity threshold for search results, computed from the vectors of the cohort."""

    def __init__(self, cohort: Sequence[Sequence[float]]) -> None:
        self.numbers = len(cohort[0])
        self._codes = [code_of(vector) for vector in cohort]
        from statistics import pstdev

        self._deviation = pstdev(closeness(first, other) for first, other in combinations(self._codes, 2))

    def of(self, question: bytes) -> float:
        from statistics import fmean

        return fmean(closeness(question, code) for code in self._codes) + DEVIATIONS * self._deviation


def code_of(vector: Sequence[float]) -> bytes:
    """Quantize a vector to signed bytes. The component with the largest magnitude becomes 127 or -127."""
    scale = 127 / max(*map(abs, vector), SMALLEST)
    return bytes([round(number * scale) & 255 for number in vector])


def bits_of(code: bytes) -> int:
    """Pack the signs of a quantized vector into an integer, one bit per component."""
    return int(code.translate(_SIGNS), 2)


def closeness(one: bytes, other: bytes) -> float:
    """Return the cosine of two quantized vectors, or -1 if their lengths differ or one of them is zero."""
    if len(one) != len(other):
        return -1.0
    left, right = memoryview(one).cast("b"), memoryview(other).cast("b")
    lengths = sum(map(mul, left, left)) * sum(map(mul, right, right))
    return sum(map(mul, left, right)) / lengths**0.5 if lengths else -1.0
