"""Answer an autoscaler such as KEDA: the replicas that a ScaledObject's workers or service need.

A ScaledObject says what it scales in its trigger's metadata: `service`, `dwellSeconds`, of workers `models` (separated
by commas) and `startSeconds`, of other services `callsPerReplica`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping

from pentimento.domain.errors import InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.fleet import ReplicaKind
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.inputs import PlanInput, ReplicaView
from pentimento.policies.replica_counts import DWELL_S, EDGE, SERVICES, START_S, WORKERS, ReplicaCounts, ScaledTarget

METRIC = "wanted_replicas"
# Running calls that one replica is meant to have, unless the metadata say otherwise.
CALLS_OF_A_REPLICA = {
    ReplicaKind.FRONTDOOR.value: 256.0,
    EDGE: 128.0,
    ReplicaKind.EMBEDDER.value: 8.0,
    ReplicaKind.IMAGE_EMBEDDER.value: 8.0,
    ReplicaKind.VECTORDB_GATEWAY.value: 32.0,
    ReplicaKind.CONTROLNET.value: 4.0,
    ReplicaKind.DISCRIMINATOR.value: 8.0,
}
# Metadata for KEDA itself, which it sends along.
KEDA_KEYS = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile", "caCert"})
OWN_KEYS = ("service", "models", "callsPerReplica", "dwellSeconds", "startSeconds")
# Keys of workers only, and of other services only.
WORKER_KEYS, CALL_KEYS = ("models", "startSeconds"), ("callsPerReplica",)
RETRY_MS = 1000


def target_of(metadata: Mapping[str, str]) -> ScaledTarget:
    """Read a trigger's metadata. Raises InvalidArgument that names the field and its limit."""
    own = {key: value.strip() for key, value in metadata.items() if key not in KEDA_KEYS}
    if unknown := sorted(set(own) - set(OWN_KEYS)):
        raise _invalid(unknown[0], f"is unknown; the metadata are {', '.join(OWN_KEYS)}")
    service = own.get("service", "")
    if service not in SERVICES:
        raise _invalid("service", f"must be one of {', '.join(sorted(SERVICES))}, got {service[:80]!r}")
    wrong = [key for key in (CALL_KEYS if service == WORKERS else WORKER_KEYS) if key in own]
    if wrong:
        owner = f"other services than {WORKERS}" if service == WORKERS else f"the service {WORKERS}"
        raise _invalid(wrong[0], f"is for {owner}")
    dwell_s = _number(own, "dwellSeconds", DWELL_S, 0.0, 86_400.0)
    if service != WORKERS:
        calls = _number(own, "callsPerReplica", CALLS_OF_A_REPLICA[service], 0.01, 1e6)
        return ScaledTarget(service, (), calls, dwell_s, 0.0)
    models = tuple(dict.fromkeys(name.strip() for name in own.get("models", "").split(",") if name.strip()))
    return ScaledTarget(service, models, 0.0, dwell_s, _number(own, "startSeconds", START_S, 0.0, 3_600.0))


def _number(metadata: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    text = metadata.get(key, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise _invalid(key, f"must be a number of {least:g} to {most:g}, got {text[:80]!r}")
    return number


def _invalid(key: str, limit: str) -> InvalidArgument:
    return InvalidArgument.of(f"scalerMetadata.{key[:80]}", limit)


class Scaler:
    """Count replicas and wake streams, on one event loop. The controller calls `look` after each planning round and
    `note_waiting` for each report of demand."""

    def __init__(self, slo_s: float, clock: Callable[[], float], most_streams: int = 1024) -> None:
        self._counts = ReplicaCounts(slo_s)
        self._clock = clock
        self._most_streams = most_streams
        self._streams = 0
        self._changed = asyncio.Event()
        self._closed = False

    def look(self, fleet: PlanInput, models: frozenset[str], assigned: Mapping[str, str]) -> None:
        """Update the counts; see `ReplicaCounts.look`. Changes state."""
        self._counts.look(self._clock(), fleet, models, assigned)
        self._notify()

    def note_waiting(self, replicas: tuple[ReplicaView, ...]) -> None:
        """Wake the streams of targets that have no replicas and need one now. Changes state."""
        if self._counts.note_waiting(self._clock(), replicas):
            self._notify()

    def wanted(self, target: ScaledTarget) -> int:
        """Return the replicas that the target needs now. Raises InvalidArgument for an unknown model, Unavailable until
        the fleet is known."""
        if not self._counts.knows_fleet:
            raise Unavailable(Reason.FLEET_UNKNOWN, "the controller has just started", retry_after_ms=RETRY_MS)
        if strangers := sorted(set(target.models) - self._counts.models):
            known = ", ".join(sorted(self._counts.models)) or "none"
            raise _invalid("models", f"must be of {known}; got {strangers[0][:80]!r}")
        return self._counts.wanted(self._clock(), target)

    async def watch_active(self, target: ScaledTarget) -> AsyncGenerator[bool, None]:
        """Yield whether the target needs a replica, now and at each change, until `close`. Raises as `wanted`, and
        ResourceExhausted above the limit of streams."""
        if self._streams >= self._most_streams:
            message = f"at most {self._most_streams} streams of the scaler are served"
            raise ResourceExhausted("TOO_MANY_WATCHERS", message, retry_after_ms=RETRY_MS)
        self._streams += 1
        try:
            sent: bool | None = None
            while not self._closed:
                changed = self._changed
                if (active := self.wanted(target) > 0) is not sent:
                    sent = active
                    yield active
                else:
                    await changed.wait()
        finally:
            self._streams -= 1

    async def until_closed(self) -> None:
        """Return once the scaler is closed."""
        while not self._closed:
            await self._changed.wait()

    def close(self) -> None:
        """End every stream. Changes state."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
