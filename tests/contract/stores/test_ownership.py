"""Test the marks of a store's owner, on every store."""

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


@pytest.mark.parametrize("other", ["b" * 32, "of another length"])
def test_claim_of_claimed_store_is_disputed_by_both(objects: ObjectStore, other: str) -> None:
    for _ in range(2):
        assert not disputes(objects, "a" * 32)

    assert disputes(objects, other)
    assert disputes(objects, "a" * 32)


def test_claim_at_once_is_disputed_by_both(objects: ObjectStore) -> None:
    claim(objects, "a" * 32)
    # The other owner writes before it has seen this mark.
    objects.put("owner/journal", b"b" * 32)

    assert disputes(objects, "a" * 32)
    assert disputes(objects, "b" * 32)


def test_adopt_makes_one_owner(objects: ObjectStore) -> None:
    claim(objects, "a" * 32)
    assert disputes(objects, "b" * 32)

    adopt(objects, "b" * 32)

    assert not disputes(objects, "b" * 32)
    assert disputes(objects, "a" * 32)
