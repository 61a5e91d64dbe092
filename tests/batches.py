"""How tests are given to workers: a group as a whole, of other tests a few of a file at a time.

xdist alone gives out one at a time: each worker makes the fixtures of each module then, and what is counted after each
test grows with the number of all tests.
"""

from collections import Counter

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

TESTS_MAX = 12
"""In a batch; of more, the last would keep one worker busy while the others are done."""


class Batches(LoadGroupScheduling):
    """Gives batches out in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._batches: dict[str, str] = {}
        self._counts = Counter[str]()

    def _split_scope(self, nodeid: str) -> str:
        batch = self._batches.get(nodeid)
        if batch is None:
            batch = super()._split_scope(nodeid)
            if batch == nodeid:  # it is of no group
                file = nodeid.partition("::")[0]
                batch = f"{file} {self._counts[file] // TESTS_MAX}"
                self._counts[file] += 1
            self._batches[nodeid] = batch
        return batch
