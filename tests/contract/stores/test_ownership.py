"""Marks of whose objects lie in a store, on every store."""

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.stores.objects import ObjectStore
from pentimento.stores.objects.ownership import adopt, claim


def disputes(store: ObjectStore, journal_id: str) -> bool:
    try:
        claim(store, journal_id)
    except FailedPrecondition as error:
        return error.reason == "OBJECTS_DISPUTED"
    return False


def test_a_store_is_the_first_journals_however_often_it_comes(objects: ObjectStore) -> None:
    assert not disputes(objects, "a" * 32)
    assert not disputes(objects, "a" * 32)


@pytest.mark.parametrize("other", ["b" * 32, "of another length"])
def test_whoever_comes_to_anothers_store_hears_it_and_so_does_its_owner(objects: ObjectStore, other: str) -> None:
    claim(objects, "a" * 32)

    assert disputes(objects, other)
    assert disputes(objects, "a" * 32)


def test_two_that_come_to_an_empty_store_at_once_both_hear_it(objects: ObjectStore) -> None:
    claim(objects, "a" * 32)
    # As if it had not seen the other one's mark yet.
    objects.put("owner/journal", b"b" * 32)

    assert disputes(objects, "a" * 32)
    assert disputes(objects, "b" * 32)


def test_who_adopts_the_objects_has_them_alone(objects: ObjectStore) -> None:
    claim(objects, "a" * 32)
    assert disputes(objects, "b" * 32)

    adopt(objects, "b" * 32)

    assert not disputes(objects, "b" * 32)
    assert disputes(objects, "a" * 32)
