"""Random walks with quotas of tenants that appear, change and disappear."""

import random

from pentimento.dataplane import events
from pentimento.domain.tenants import TenantQuota
from tests.unit.dataplane.test_random_walks import Walk


class QuotaWalk(Walk):
    """A walk that limits tenant "a" now and then."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._steps[self._limit] = 2

    def _limit(self) -> None:
        rng = self._rng
        quota = TenantQuota(
            requests_per_s=rng.choice([None, 0.05, 1.0]), concurrent_count=rng.choice([None, 2, 5]), cost_per_minute=5.0
        )
        self.world.send(events.QuotasReceived((("a", quota),) if rng.random() < 0.7 else ()))


def test_walk_with_quotas_keeps_every_promise() -> None:
    for seed in range(10):
        rng, reasons = random.Random(seed), set[str]()
        for _ in range(5):
            walk = QuotaWalk(rng)
            walk.run()
            reasons |= set(walk.world.rejected.values())

        assert "TENANT_QUOTA" in reasons, seed
