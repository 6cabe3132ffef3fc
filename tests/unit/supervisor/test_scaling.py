"""Wanted numbers of processes, written by several commands at once."""

import threading
from pathlib import Path

from pentimento.supervisor.scaling import ReplicaFiles


def test_two_simultaneous_wishes_are_both_kept(tmp_path: Path) -> None:
    files, together = ReplicaFiles(tmp_path), threading.Barrier(2)
    failed: list[BaseException] = []

    def ask(group: str) -> None:
        try:
            for count in range(1, 65):
                together.wait(60.0)
                files.want(group, count)
                together.wait(60.0)
                assert files.wanted()[group] == count
        except BaseException as error:
            failed.append(error)
            together.abort()

    asking = [threading.Thread(target=ask, args=(group,)) for group in ("embedder", "unet_worker")]
    for one in asking:
        one.start()
    for one in asking:
        one.join()

    assert failed == []
    assert files.wanted() == {"embedder": 64, "unet_worker": 64}
