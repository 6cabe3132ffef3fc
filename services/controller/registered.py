"""Print the digests of the registered models that workers can fetch, by name, as JSON:
`python -m services.controller.registered LEDGER_URL`. For `pentimento up`, which starts the controller later."""

import json
import sys

from pentimento.rpc import run_service
from pentimento.stores.ledger.fleet_ledger import open_fleet_ledger
from pentimento.telemetry import configure_logging
from services.controller.repository import ModelRepository


async def main(argv: list[str]) -> None:
    """Print the models. Raises the ledger's errors."""
    (ledger_url,) = argv
    ledger = open_fleet_ledger(ledger_url)
    try:
        repository = ModelRepository(ledger)
        await repository.load()
    finally:
        ledger.close()
    found = {model.name: model.digest for model in repository.registered.models if model.source}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    configure_logging("registered", "")
    run_service(main)
