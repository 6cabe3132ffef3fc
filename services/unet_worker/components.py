"""List the components on a host's disk as JSON, and pin or drop one:
`python -m services.unet_worker.components --component-cache-dir DIR`. Processes that serve from it are not interrupted.
"""

import asyncio
import json
import sys

from pentimento.domain.errors import FailedPrecondition
from pentimento.files.json_values import to_json
from pentimento.policies.components import Utility
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.store import StoredComponent
from pentimento.telemetry import configure_logging
from services.unet_worker.settings import ComponentAction, ComponentsSettings


def listed(settings: ComponentsSettings) -> tuple[StoredComponent, ...]:
    """Change a component as the settings say, and return all. Raises InvalidArgument for a wrong digest, and
    FailedPrecondition COMPONENT_IN_USE."""
    # Nothing is fetched here: quotas do not matter.
    store = ComponentStore(settings.component_cache_dir, 0, 0, Utility)
    if settings.action in (ComponentAction.PIN, ComponentAction.UNPIN):
        store.pin(settings.digest, pinned=settings.action is ComponentAction.PIN)
    if settings.action is ComponentAction.DROP and not store.drop(settings.digest):
        raise FailedPrecondition("COMPONENT_IN_USE", f"{settings.digest} is in use; try again")
    return store.components()


async def main(argv: list[str]) -> None:
    """Print the components."""
    settings = load_settings(ComponentsSettings, "components", argv)
    found = await asyncio.to_thread(listed, settings)
    sys.stdout.write(json.dumps([to_json(one) for one in found]) + "\n")


if __name__ == "__main__":
    configure_logging("components", "")
    run_service(main)
