"""How tests are dealt to processes: by file, and those that share the one real suite together."""

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

ONE_SUITE = "tests/e2e"


class ByFile(LoadFileScheduling):
    """What shares the suite of the whole tier stays in one process, which starts it once."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SUITE if nodeid.startswith(ONE_SUITE) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)
