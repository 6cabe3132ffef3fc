"""Do ledger, index and object store agree? For tests, and for operators after a bad night."""

from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.objects import ObjectStore
from pentimento.stores.vectors import VectorIndex
from services.vectordb_gateway.index_differences import index_differences


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
    wrong: list[str] = []
    try:
        for differences in index_differences(ledger, index):
            wrong += [f"entry {entry_id} is not in the index" for entry_id in differences.missing]
            wrong += [f"point {entry_id} has no entry" for entry_id in differences.unknown]
    except PentimentoError as error:
        wrong.append(error.message)
    return wrong
