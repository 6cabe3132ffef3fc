"""What holds for all tests of parts: what one draws does not depend on those that its process ran before."""

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
    """Let torch begin anew where it is loaded: some tests compare what is computed of what it draws."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)


@pytest.fixture
def journal(tmp_path: Path) -> "Iterator[Journal]":
    """A journal on SQLite by the machine's clock."""
    from pentimento.stores.ledger import open_journal

    with closing(open_journal(f"sqlite:///{tmp_path}/journal.sqlite")) as opened:
        yield opened
