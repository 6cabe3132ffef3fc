"""Check whether ledger, index and object store agree, for tests and for operators:

    python -m services.vectordb_gateway.integrity --ledger-url … --index-url … --objects-url …

It takes the gateway's own options, prints a line per fault, and changes nothing. Run it while the gateway is stopped:
an unfinished write looks like a fault. It exits with 1 if there is any, with 2 if it cannot check.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.vectors import VectorIndex, open_vectors
from pentimento.stores.vectors.index_building import NO_BUILD
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.upkeep.indexing import batches, index_differences

_BATCH_COUNT = 1000
_OF_FILES = ("sqlite", "edge", "file")


def main(argv: list[str] | None = None) -> int:
    """Print the faults of the stores that the arguments name, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--ledger-url", "--index-url", "--objects-url"):
        parser.add_argument(option, required=True)
    try:
        wrong = check_stores(**vars(parser.parse_args(argv)))
    except (PentimentoError, OSError) as error:
        print(f"nothing was checked: {error}", file=sys.stderr)
        return 2
    print("\n".join(wrong or ["nothing is wrong"]))
    return 1 if wrong else 0


def check_stores(ledger_url: str, index_url: str, objects_url: str) -> list[str]:
    """Return everything that is wrong with stores that no gateway has open. Raises InvalidArgument where there is
    nothing at a url, StoreUnavailable, SchemaMismatch."""
    for field, url in (("ledger_url", ledger_url), ("index_url", index_url), ("objects_url", objects_url)):
        require_there(field, url)
    objects, index = open_objects(objects_url, read_only=True), open_vectors(index_url, NO_BUILD)
    try:
        # A gateway of an older version could not use a ledger that was migrated.
        ledger = open_cache_ledger(ledger_url, as_it_is=True)
        try:
            EncoderGuard(ledger, index).open()
            return check_integrity(ledger, index, objects)
        finally:
            ledger.close()
    finally:
        index.close()


def check_integrity(ledger: CacheLedger, index: VectorIndex, objects: ObjectStore) -> list[str]:
    """Return every fault in words. Meaningful while no write is unfinished; reads every object."""
    return [
        *ledger.check_integrity(),
        *objects.check_integrity([*ledger.held_references(), *ledger.kept_by_pins()]),
        *_unknown_objects(ledger, objects),
        *_index_differences(ledger, index),
    ]


def _unknown_objects(ledger: CacheLedger, objects: ObjectStore) -> Iterator[str]:
    found = list(objects.keys(f"cache/{ledger.cache_id}/"))
    for batch in batches(found, _BATCH_COUNT):
        known = ledger.known_keys(batch)
        yield from (f"object {key} is in the store but not in the ledger" for key in batch if key not in known)


def _index_differences(ledger: CacheLedger, index: VectorIndex) -> list[str]:
    wrong: list[str] = []
    try:
        for differences in index_differences(ledger, index):
            wrong += [f"entry {entry_id} is not in the index" for entry_id in differences.missing]
            wrong += [f"point {entry_id} has no entry" for entry_id in differences.unknown]
    except PentimentoError as error:
        wrong.append(error.message)
    return wrong


def require_there(field: str, url: str) -> None:
    """Check that there is something at the url of files, for who makes nothing: opening a store makes it. Raises
    InvalidArgument."""
    parts = urlsplit(url)
    path = Path("/", unquote(parts.path).lstrip("/"))
    if parts.scheme in _OF_FILES and not path.exists():
        raise InvalidArgument.of(field, f"there is nothing at {path}")


if __name__ == "__main__":
    raise SystemExit(main())
