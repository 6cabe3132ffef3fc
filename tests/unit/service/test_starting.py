"""Garbage collection waits while a service imports its modules."""

import gc

import pytest

from pentimento.service.starting import importing_much


def test_nothing_is_collected_inside_and_everything_after_it() -> None:
    with importing_much():
        inside = gc.isenabled()

    assert (inside, gc.isenabled()) == (False, True)


def test_an_import_that_fails_leaves_collections_on() -> None:
    with pytest.raises(ImportError), importing_much():
        raise ImportError

    assert gc.isenabled()
