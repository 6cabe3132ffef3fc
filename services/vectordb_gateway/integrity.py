"""Do ledger, index and object store agree? For tests, and for operators after a bad night."""

from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.objects import ObjectStore
from pentimento.stores.vectors import VectorIndex


def check_integrity(ledger: CacheLedger, index: VectorIndex, objects: ObjectStore) -> list[str]:
    """Everything that is wrong, in words. Meaningful when no write is under way; reads every object."""
    return [
        *ledger.check_integrity(),
        *objects.check_integrity([*ledger.held_references(), *ledger.kept_by_pins()]),
        *_unknown_objects(ledger, objects),
        *_index_differences(ledger, index),
    ]


def _unknown_objects(ledger: CacheLedger, objects: ObjectStore) -> list[str]:
    found = list(objects.keys(f"cache/{ledger.cache_id}/"))
    known = ledger.known_keys(found)
    return [f"object {key} is in the store but not in the ledger" for key in found if key not in known]


def _index_differences(ledger: CacheLedger, index: VectorIndex) -> list[str]:
    expected = ledger.indexed_ids()
    try:
        present = set(index.entry_ids())
    except PentimentoError as error:
        return [error.message]
    missing = [f"entry {entry_id} is not in the index" for entry_id in sorted(expected - present)]
    return missing + [f"point {entry_id} has no entry" for entry_id in sorted(present - ledger.entry_ids())]
