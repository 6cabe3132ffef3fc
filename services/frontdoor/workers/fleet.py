"""Follow the plan: the workers to watch, the models and adapters that exist, the optional services to call."""

from dataclasses import dataclass

from pentimento.domain.fleet import Plan
from services.frontdoor.routing.discriminators import Discriminators
from services.frontdoor.routing.prompts import PromptEmbedder
from services.frontdoor.workers.catalogue import AdapterCatalogue, Catalogue
from services.frontdoor.workers.worker_links import WorkerLinks


@dataclass(frozen=True)
class WatchedFleet:
    """Hold what this frontdoor knows of the fleet. `worker_addresses` are the operator's, which need no plan."""

    links: WorkerLinks
    catalogue: Catalogue
    adapters: AdapterCatalogue
    prompts: PromptEmbedder
    discriminators: Discriminators
    worker_addresses: tuple[str, ...]

    def follow(self, plan: Plan | None) -> None:
        if plan is not None:
            self.adapters.follow(plan)
            models = {pool.model for pool in plan.pools} | {assigned.model for assigned in plan.assignments}
            self.catalogue.follow(plan.registered, models)
        endpoints = plan.endpoints if plan is not None else ()
        self.prompts.follow(endpoints)
        self.discriminators.follow(endpoints, plan.components if plan is not None else ())
        planned = {assignment.address: False for assignment in plan.assignments} if plan is not None else {}
        self.links.follow(planned | dict.fromkeys(self.worker_addresses, True))
