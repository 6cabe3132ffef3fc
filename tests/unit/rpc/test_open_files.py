"""Raise the limit of open files to the connections of a server."""

import resource

import pytest

from pentimento.rpc.transport import allow_files, files_of


@pytest.mark.parametrize(("soft", "wanted", "left"), [(256, 300, 300), (512, 300, 512)])
def test_file_limit_allows_bound_of_connections(soft: int, wanted: int, left: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        allow_files(wanted)
        found = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert found == (left, before[1])


@pytest.mark.parametrize(("takes_turns", "count"), [(False, 276), (True, 296)])
def test_connections_that_take_turns_are_three_files_each(takes_turns: bool, count: int) -> None:
    listen = ("unix:/run/s", "127.0.0.1:0")

    assert files_of(listen, 10, takes_turns=takes_turns) == count
