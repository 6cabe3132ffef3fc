"""Migrate every ledger of databases: `python -m pentimento.stores.ledger.migrate_all URL…`.

Each service migrates its own ledger at its start. An upgrade of a cluster does it before, once, while processes of the
former version continue on the newer tables. The command prints a line per ledger; it exits with 1 if it cannot migrate
one, with 2 without a URL. Of the second database on, which cells have, only the journal is migrated.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from pentimento.stores.ledger.journal.requests import open_journal

# Openers of the ledgers, in the order of migration.
LEDGERS: Mapping[str, Callable[[str], Any]] = {
    "journal": open_journal,
    "cache": open_cache_ledger,
    "fleet": open_fleet_ledger,
}


def main(arguments: list[str]) -> int:
    """Migrate the ledgers at the URLs and return the exit status; they may be missing, or up to date."""
    if not arguments:
        sys.stderr.write("usage: python -m pentimento.stores.ledger.migrate_all URL…\n")
        return 2
    first, *cells = arguments
    for component, url in [*((name, first) for name in LEDGERS), *(("journal", cell) for cell in cells)]:
        try:
            LEDGERS[component](url).close()
        except PentimentoError as error:
            sys.stderr.write(f"{component}: {error}\n")
            return 1
        print(f"{component}: has this build's tables", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
