"""Run all tests of a folder in one event loop, so that they can share a server."""

from pathlib import Path

import pytest
import pytest_asyncio


def run_in_one_loop(items: list[pytest.Item], folder: Path) -> None:
    """Give async tests below the folder the event loop of the session. For `pytest_collection_modifyitems`."""
    in_one_loop = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if folder in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(in_one_loop, append=False)
