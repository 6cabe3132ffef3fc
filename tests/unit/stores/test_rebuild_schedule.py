"""Schedule rebuilds of the embedded index, with builds that make further ones due."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pentimento.domain.errors import Unavailable
from pentimento.stores.vectors.index_building import IndexBuilding, IndexCounts
from pentimento.stores.vectors.rebuild_schedule import RebuildSchedule

BUILDING = IndexBuilding(least_points_count=1000, unindexed_share=0.5, first_retry_s=0.01)
DUE, SETTLED = IndexCounts(1200, 1200), IndexCounts(1200, 0)
LONG_S, SHORT_S = 60.0, 0.2


@dataclass
class Serving:
    counts: IndexCounts = DUE


class Builds:
    """A schedule with scripted builds, one after the other."""

    def __init__(self, *acts: Callable[["Builds"], None]) -> None:
        self._acts = iter(acts)
        self.serving: Any = Serving()
        self.begun, self.one_more = 0, threading.Event()
        new_build: Any = lambda: self  # noqa: E731
        self.schedule = RebuildSchedule(self.serving, BUILDING, new_build)

    def run(self) -> None:
        self.begun += 1
        act = next(self._acts, None)
        if act is None:
            self.one_more.set()
        else:
            act(self)

    def stop(self) -> None:
        """Ignore it: no build takes long."""


def settle(builds: Builds) -> None:
    builds.serving.counts = SETTLED


def test_rows_due_during_build_are_not_built_again() -> None:
    built = threading.Event()

    def looked_at_meanwhile(builds: Builds) -> None:
        builds.schedule.look()
        settle(builds)
        built.set()

    builds = Builds(looked_at_meanwhile)
    builds.schedule.start()

    assert built.wait(LONG_S)
    assert not builds.one_more.wait(SHORT_S)
    builds.schedule.close()
    assert (builds.begun, builds.schedule.builds_count) == (1, 1)


def test_rows_due_after_build_are_built() -> None:
    built = threading.Event()

    def first(builds: Builds) -> None:
        settle(builds)
        built.set()

    builds = Builds(first)
    builds.schedule.start()
    assert built.wait(LONG_S)

    builds.serving.counts = DUE
    builds.schedule.look()

    assert builds.one_more.wait(LONG_S)
    builds.schedule.close()


def test_a_build_that_failed_is_tried_again() -> None:
    def fail(builds: Builds) -> None:
        raise Unavailable("INDEX_UNAVAILABLE", "by the test")

    builds = Builds(fail)
    builds.schedule.start()

    assert builds.one_more.wait(LONG_S)
    builds.schedule.close()
    assert builds.schedule.failures_count == 1


def test_a_build_that_was_about_to_begin_does_not_outlive_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    builds, closer_waits = Builds(settle), threading.Event()
    closer = threading.Thread(target=builds.schedule.close)
    join = builds.schedule._thread.join

    def wait() -> None:
        closer_waits.set()
        join()

    def closed_meanwhile() -> Builds:
        closer.start()
        assert closer_waits.wait(LONG_S)
        return builds

    monkeypatch.setattr(builds.schedule._thread, "join", wait)
    monkeypatch.setattr(builds.schedule, "_new_rebuild", closed_meanwhile)

    builds.schedule.start()

    assert closer_waits.wait(LONG_S)
    closer.join()
    assert builds.begun == 0
