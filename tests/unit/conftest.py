"""Make the random draws of a test independent of earlier tests in its process."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pentimento.stores.ledger import Journal


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Reset the seed of torch where it is loaded: some tests compare values computed from its draws."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)


@pytest.fixture
def journal(tmp_path: Path) -> "Iterator[Journal]":
    """Open a journal on SQLite with the clock of the machine."""
    from pentimento.stores.ledger import open_journal

    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite")) as opened:
        yield opened
