"""Fill the embedded index again from the ledger, for an operator while the gateway is stopped.

    python -m services.vectordb_gateway.rebuild_index --index-url edge:///cache/index --ledger-url …

The present points are discarded first. An error before that changes nothing and is printed. A rebuild that ends half
way prints that, and the gateway's first round fills the rest.
"""

import argparse
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pentimento.domain.embedding import Space
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.generations import empty_index
from pentimento.stores.vectors.index_building import NO_BUILD
from services.vectordb_gateway.integrity import require_there
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from services.vectordb_gateway.upkeep.indexing import Indexing


class RebuildUnfinished(Exception):
    """The points were discarded, and not all of the ledger's entries are in the index; the message says why."""


def main(argv: list[str] | None = None) -> int:
    """Rebuild the index that the arguments name, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--index-url", "--ledger-url"):
        parser.add_argument(option, required=True)
    try:
        count = rebuild(**vars(parser.parse_args(argv)))
    except RebuildUnfinished as error:
        print(f"the index was dropped and is not complete yet; the gateway fills the rest: {error}", file=sys.stderr)
        return 1
    except (PentimentoError, OSError) as error:
        print(f"nothing was changed: {error}", file=sys.stderr)
        return 1
    print(f"{count} points were written from the ledger")
    return 0


def rebuild(index_url: str, ledger_url: str) -> int:
    """Discard the points of the index, write those of the ledger's entries, and return how many there are. Raises
    RebuildUnfinished; any other error means that nothing was changed."""
    require_there("ledger_url", ledger_url)
    # Not migrated: a gateway of an older version could not use a migrated ledger.
    ledger = open_cache_ledger(ledger_url, as_it_is=True)
    try:
        dimensions, directory = dimensions_of(ledger), index_directory(index_url)
        empty_index(directory, *dimensions)
        index = EdgeVectorIndex(directory, building=NO_BUILD)
        try:
            return fill_from(ledger, index)
        except (PentimentoError, OSError) as error:
            raise RebuildUnfinished(str(error)) from error
        finally:
            index.close()
    finally:
        ledger.close()


def fill_from(ledger: CacheLedger, index: EdgeVectorIndex) -> int:
    """Bring the index to the ledger's state, and return how many points it has then."""
    guard = EncoderGuard(ledger, index)
    guard.open()
    indexing = Indexing(ledger, index, guard)
    indexing.reconcile()
    indexing.index_new()
    indexing.close()
    return sum(1 for _ in index.entry_ids())


def dimensions_of(ledger: CacheLedger) -> tuple[int, int]:
    """Return how many dimensions the cache's vectors of texts and of images have. Raises FailedPrecondition for a cache
    that never held any."""
    bound = ledger.bindings()
    if Space.TEXT not in bound:
        raise FailedPrecondition("CACHE_EMPTY", "the cache is bound to no encoder: it has never held anything")
    return bound[Space.TEXT].dimension_count, bound.get(Space.IMAGE, bound[Space.TEXT]).dimension_count


def index_directory(url: str) -> Path:
    """Return the directory of an embedded index. Raises InvalidArgument for a server's."""
    parts = urlsplit(url)
    if parts.scheme != "edge" or not parts.path or parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument.of("index_url", f"must be edge:///directory, got {url!r}")
    return Path(unquote(parts.path))


if __name__ == "__main__":
    raise SystemExit(main())
