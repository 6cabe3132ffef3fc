"""Deal test files to processes, and go on after one of the processes has died.

pytest-xdist 3.8.0 loses its place when a test process dies: finished files return to the queue, a process that gets one
of them has nothing to run, and the run waits forever. Its issues 1323, 1327 and 1378 describe this; the first version
with the fixes of 1324 and 1328 makes `remove_node` and `_reschedule` below unnecessary.
"""

from contextlib import suppress

import psutil
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Real suites are processes enough for all cores: one test process starts them, one after the other, while the other
# process has the tests that wait more than they compute.
SUITES = ("tests/e2e/",)
# A process starts a test once it knows the next one, so it needs two to run at all, and a third not to wait.
TESTS_AHEAD = 3


class ByFile(LoadFileScheduling):
    """Deal files to processes; files that share a suite stay in one process, which starts it once."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in SUITES if nodeid.startswith(folder)), str(super()._split_scope(nodeid)))

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that `node` was running when it died, if any, and deal its unfinished files again, first."""
        if self.collection is None:  # It died before any file was dealt: its successor collects in its place.
            self.registered_collections.pop(node, None)
        files = self.assigned_work.pop(node)
        crashed = next((test for file in files.values() for test, done in file.items() if not done), None)
        if crashed is None:
            return None
        for scope, file in reversed(files.items()):
            if crashed in file:
                file[crashed] = True
            if not all(file.values()):
                self.workqueue[scope] = file
                self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Send files to `node` until it has enough tests, or tell it that there are no more."""
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < TESTS_AHEAD:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def kill_children_left_by(node: WorkerController) -> None:
    """Kill what a dead test process had started: nobody waits for these processes any more."""
    run, name = node.workerinput["testrunuid"], node.gateway.id
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # It may end at any moment, or belong to another user.
            environment = process.environ()
            if (environment.get("PYTEST_XDIST_TESTRUNUID"), environment.get("PYTEST_XDIST_WORKER")) == (run, name):
                process.kill()
