"""Run the controller: `python -m services.controller`."""

import asyncio

from pentimento.settings import load_settings
from services.controller.allocating import run_beside_allocators
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire


async def main(argv: list[str]) -> None:
    """Serve, with a ledger if the settings name one."""
    settings = load_settings(ControllerSettings, "controller", argv)
    if not settings.ledger_url:
        return await wire(settings).run()
    # A controller without a ledger starts without its libraries.
    from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger

    ledger = await asyncio.to_thread(open_fleet_ledger, settings.ledger_url)
    try:
        await wire(settings, ledger).run()
    finally:
        await asyncio.to_thread(ledger.close)


if __name__ == "__main__":
    run_beside_allocators(main)
