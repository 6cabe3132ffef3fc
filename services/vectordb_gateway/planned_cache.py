"""What the cache goes by now: the operator's settings and, where the operator gave leave, the plan in force."""

import logging
from dataclasses import replace

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan
from pentimento.policies.cache_selection import SelectionRules
from pentimento.policies.followed_cache import CacheChoice, CacheInForce, cache_in_force
from pentimento.policies.plan_checks import check_plan
from pentimento.policies.reuse_rules import ModelReuse, ReuseRules
from services.vectordb_gateway import metrics

logger = logging.getLogger(__name__)


class PlannedCache:
    """Says what models may reuse, with the bias that is in force. `own`: what the operator chose, which stands over
    every plan. Plans are taken on the event loop; any thread may ask."""

    def __init__(self, own: CacheChoice, rules: ReuseRules) -> None:
        self._own = own
        self._profiled = rules
        self._now = self._ruled(cache_in_force(own, None))

    @property
    def in_force(self) -> CacheInForce:
        """Return what the cache goes by now."""
        return self._now[0]

    @property
    def reuses_anything(self) -> bool:
        """Return whether any table allows anything."""
        return self._now[1].reuses_anything

    def of(self, model_digest: str, encoder_digest: str | None) -> ModelReuse:
        """Return what a model may reuse under an encoder; None for one that is not known yet."""
        return self._now[1].of(model_digest, encoder_digest)

    def keeping(self, model_digest: str, encoder_digest: str | None) -> SelectionRules:
        """Return the rules by which a model's pictures are kept."""
        return self._now[1].keeping(model_digest, encoder_digest)

    def take(self, plan: Plan) -> None:
        """Go by that plan from now on. One that makes no sense changes nothing, and the log says why."""
        try:
            check_plan(plan)
        except InvalidArgument as error:
            metrics.PLANS.labels("refused").inc()
            logger.error("an invalid plan is not followed: %s", error)
            return
        before, now = self.in_force, cache_in_force(self._own, plan)
        self._now = self._ruled(now)
        metrics.PLANS.labels("followed").inc()
        if replace(now, told="", plan=None) != replace(before, told="", plan=None):
            chosen = {"alpha": now.alpha, "bias": now.bias, "eviction": now.eviction}
            kept = {"admits": now.admits, "admits_light": now.admits_light}
            logger.info("the cache follows a plan", extra={"sequence": plan.version.sequence, **chosen, **kept})

    def _ruled(self, now: CacheInForce) -> tuple[CacheInForce, ReuseRules]:
        return now, replace(self._profiled, bias=now.bias)
