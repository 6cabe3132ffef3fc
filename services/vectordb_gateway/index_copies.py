"""Snapshots of the embedded index, for an operator while the gateway is stopped.

    python -m services.vectordb_gateway.index_copies snapshot --index-url edge:///cache/index --ledger-url … --to DIR
    python -m services.vectordb_gateway.index_copies restore  --index-url edge:///cache/index --from DIR
    python -m services.vectordb_gateway.index_copies rebuild  --index-url edge:///cache/index --ledger-url …

`restore` puts a snapshot in the place of the index; the gateway's first round makes up for what came and went since.
`rebuild` throws the index away and fills it from the ledger. What fails changes nothing and says so; a rebuild that
ends half way says that, and the gateway's first round fills the rest.
"""

import argparse
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from pentimento.stores.vectors.edge import EdgeVectorIndex
from pentimento.stores.vectors.index_building import NO_BUILD
from pentimento.stores.vectors.snapshots import empty_index, restore_snapshot
from services.vectordb_gateway.encoder_guard import EncoderGuard
from services.vectordb_gateway.indexing import Indexing
from services.vectordb_gateway.integrity import require_there


class RebuildUnfinished(Exception):
    """The index was thrown away, and not all of the ledger's entries are in the new one; the message says why."""


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        print(arguments.run(arguments))
    except RebuildUnfinished as error:
        print(f"the index was thrown away and is not whole yet, the gateway fills the rest: {error}", file=sys.stderr)
        return 1
    except (PentimentoError, OSError) as error:
        print(f"nothing was changed: {error}", file=sys.stderr)
        return 1
    return 0


def snapshot(arguments: argparse.Namespace) -> str:
    require_there("index_url", arguments.index_url)
    index, ledger = EdgeVectorIndex(index_directory(arguments.index_url), building=NO_BUILD), _opened(arguments)
    try:
        index.prepare(dimensions_of(ledger))
        taken = index.snapshot(arguments.to)
    finally:
        index.close()
        ledger.close()
    return f"{taken.points_count} points are in {arguments.to}"


def restore(arguments: argparse.Namespace) -> str:
    restored = restore_snapshot(arguments.origin, index_directory(arguments.index_url))
    return f"{restored.points_count} points were restored"


def rebuild(arguments: argparse.Namespace) -> str:
    ledger = _opened(arguments)
    try:
        dimension_count, directory = dimensions_of(ledger), index_directory(arguments.index_url)
        empty_index(directory, dimension_count)
        index = EdgeVectorIndex(directory, building=NO_BUILD)
        try:
            return f"{fill_from(ledger, index)} points were written from the ledger"
        except (PentimentoError, OSError) as error:
            raise RebuildUnfinished(str(error)) from error
        finally:
            index.close()
    finally:
        ledger.close()


def fill_from(ledger: CacheLedger, index: EdgeVectorIndex) -> int:
    """Bring the index to what the ledger says; how many points it has then."""
    guard = EncoderGuard(ledger, index)
    guard.open()
    indexing = Indexing(ledger, index, guard)
    indexing.reconcile()
    indexing.index_new()
    indexing.close()
    return sum(1 for _ in index.entry_ids())


def dimensions_of(ledger: CacheLedger) -> int:
    """How many dimensions the cache's vectors have. Raises FailedPrecondition for a cache that never held any."""
    binding = ledger.binding()
    if binding is None:
        raise FailedPrecondition("CACHE_EMPTY", "the cache is bound to no encoder: it has never held anything")
    return binding.dimension_count


def index_directory(url: str) -> Path:
    """Where an embedded index lies. Raises InvalidArgument for a server's, which has snapshots of its own."""
    parts = urlsplit(url)
    if parts.scheme != "edge" or not parts.path or parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument.of("index_url", f"must be edge:///directory, got {url!r}")
    return Path(unquote(parts.path))


def _opened(arguments: argparse.Namespace) -> CacheLedger:
    """The ledger as it is: a gateway of before could not go on with one that was migrated."""
    require_there("ledger_url", arguments.ledger_url)
    return open_cache_ledger(arguments.ledger_url, as_it_is=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    for name, run in (("snapshot", snapshot), ("restore", restore), ("rebuild", rebuild)):
        action = actions.add_parser(name)
        action.set_defaults(run=run)
        action.add_argument("--index-url", required=True)
        if run is not restore:
            action.add_argument("--ledger-url", required=True)
        if run is snapshot:
            action.add_argument("--to", type=Path, required=True, help="a directory that is not there yet")
        if run is restore:
            action.add_argument("--from", dest="origin", type=Path, required=True, help="a snapshot's directory")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
