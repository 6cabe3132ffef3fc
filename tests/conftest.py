"""How tests are dealt to processes: by file, and those that share the one real suite together."""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

ONE_SUITE = "tests/e2e"

# Set before torch is imported, here and in the processes that tests start: two test processes share the cores, and on
# some processors the last bits of a picture depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class ByFile(LoadFileScheduling):
    """What shares the suite of the whole tier stays in one process, which starts it once."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SUITE if nodeid.startswith(ONE_SUITE) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
