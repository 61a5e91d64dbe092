"""How tests are given to the workers of a run: those of one group to one, and always some ahead.

As xdist's own `loadgroup`, which gives a worker one test when another has ended, and counts all that it ever had for
that: where thousands of tests take milliseconds, workers wait for it a tenth of their time.
"""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

AHEAD = 10
"""So many tests a worker has to do, at least, while there are any."""


class Scheduler(LoadGroupScheduling):
    """Made by xdist, in the process that runs no tests itself."""

    _places: dict[str, int] | None = None

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        name = self.registered_collections[node][item_index]
        group = self._split_scope(name)
        tests = self.assigned_work[node][group]
        tests[name] = True
        if all(tests.values()):
            del self.assigned_work[node][group]
        self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < AHEAD:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._places is None:  # the same in each worker: that was compared
            self._places = {name: place for place, name in enumerate(self.registered_collections[node])}
        group, tests = self.workqueue.popitem(last=False)
        self.assigned_work[node][group] = tests
        node.send_runtest_some([self._places[name] for name, is_done in tests.items() if not is_done])
