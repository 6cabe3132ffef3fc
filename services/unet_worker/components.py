"""List the components on a host's disk as JSON, and pin or drop one:
`python -m services.unet_worker.components --component-cache-dir DIR`. Processes that serve from it are not interrupted.
"""

from pentimento.domain.errors import FailedPrecondition
from pentimento.policies.components import Utility
from pentimento.rpc import print_found
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.store import StoredComponent
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


if __name__ == "__main__":
    print_found("components", ComponentsSettings, listed)
