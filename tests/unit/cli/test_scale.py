"""`pentimento scale` while the suite that it asks goes on, or does not."""

from pathlib import Path

import pytest

from pentimento.cli.control import wait_until_settled
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.scaling import GroupStatus, ReplicaFiles


def test_a_suite_that_stops_meanwhile_is_told_of(tmp_path: Path) -> None:
    files = ReplicaFiles(tmp_path)
    files.forget()

    with pytest.raises(FailedPrecondition, match="embedder: the suite has stopped"):
        wait_until_settled(files, "embedder", 2, GroupStatus(1), 60.0)
