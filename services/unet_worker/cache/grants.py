"""Decide whether an attempt may store its captures: only under a grant that the gateway signed for it."""

import logging
from dataclasses import replace

from pentimento.domain.cache import GrantBinding, GrantRefusal, check_grant
from pentimento.domain.clock import Clock
from pentimento.rpc.grant_keys import GrantKeys
from services.unet_worker import metrics
from services.unet_worker.attempts.order import ExecuteOrder

logger = logging.getLogger(__name__)

_REASONS = {
    GrantRefusal.UNSIGNED: "its grant is not signed",
    GrantRefusal.NOT_OURS: "its grant is not the gateway's for this attempt",
    GrantRefusal.EXPIRED: "its grant has expired",
}


class GrantGuard:
    """Check grants. Without `keys`, believe every grant if `open_to_all`, as every client may call then, else none."""

    def __init__(self, keys: GrantKeys | None, clock: Clock, *, open_to_all: bool) -> None:
        self._keys = keys
        self._clock = clock
        self._open = keys is None and open_to_all
        if keys is None and not open_to_all:
            logger.warning("no grant key file: nothing is stored in the cache")

    def admitted(self, order: ExecuteOrder) -> ExecuteOrder:
        """Return the order; an invalid grant is removed, with a note that gives the reason."""
        if order.cache_grant is None or self._open:
            return order
        keys = self._keys.believed if self._keys is not None else ()
        refusal = check_grant(keys, order.cache_grant, _binding(order), self._clock.wall() * 1000)
        if refusal is None:
            return order
        metrics.GRANTS_REFUSED.labels(refusal.value).inc()
        return replace(order, cache_grant=None, notes=(*order.notes, f"cache: nothing stored, {_REASONS[refusal]}"))


def _binding(order: ExecuteOrder) -> GrantBinding:
    attempt, spec = order.attempt, order.spec
    return GrantBinding(
        tenant=attempt.tenant,
        request_id=attempt.request_id,
        fencing_token=attempt.fencing_token,
        model_digest=order.route.model_digest,
        width_px=spec.width_px,
        height_px=spec.height_px,
        step_count=spec.num_inference_steps,
    )
