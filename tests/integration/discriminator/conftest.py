"""Run all tests of the discriminator in one event loop, because they share a process."""

from pathlib import Path

import pytest

from tests.support.event_loops import run_in_one_loop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_in_one_loop(items, Path(__file__).parent)
