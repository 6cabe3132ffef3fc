"""Give a journal, restored or not, a new identity and larger epochs: `python -m services.frontdoor.renewal`.

The active frontdoor stops within its lease and, started again, claims the next epoch.
"""

import asyncio
import time

from pentimento.domain.clock import latest_believable
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.stores.ledger import open_journal
from services.frontdoor.settings import RenewalSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(RenewalSettings, "frontdoor", argv)
    epoch = await asyncio.to_thread(renew, settings.frontdoor.ledger_url, settings.above)
    print(f"the journal is a new one; the next start of its frontdoor has an epoch above {epoch}")


def renew(ledger_url: str, above: int) -> int:
    """Renew the journal; return its newest epoch. Raises InvalidArgument for an epoch that workers would reject."""
    latest = latest_believable(time.time()) - 1
    if above > latest:
        raise InvalidArgument.of("above", f"must be at most {latest}, which workers still believe, got {above}")
    journal = open_journal(ledger_url)
    try:
        return journal.renew(above).result()
    finally:
        journal.close()


if __name__ == "__main__":
    run_service(main)
