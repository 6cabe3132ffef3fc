"""Run a frontdoor: `python -m services.frontdoor`."""

import asyncio

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.stores.ledger import open_journal
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.wiring import wire


async def main(argv: list[str]) -> None:
    """Serve over the journal under a new epoch; a standby claims its epoch at takeover."""
    settings = load_settings(FrontdoorSettings, "frontdoor", argv)
    journal = await asyncio.to_thread(open_journal, settings.ledger_url, tenants_url=settings.tenants_url)
    try:
        epoch = 0 if settings.standby else await asyncio.wrap_future(journal.claim_epoch(settings.frontdoor_id))
        await wire(settings, journal, epoch).run()
    finally:
        await asyncio.to_thread(journal.close)


if __name__ == "__main__":
    run_service(main)
