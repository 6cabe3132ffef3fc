"""What a replica may claim. Every check names the field and its limit; nothing is stored before all have passed."""

import math
import re

from pentimento.domain.adapters import ADAPTER_NAME_RULE, Adapter, PipeliningBound, is_adapter_name, is_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import (
    CONFIDENCE_BINS,
    MAX_COST_S,
    MAX_TOLD_COUNT,
    MIN_COST_S,
    ModelCost,
    PoolDemand,
    Replica,
    ReplicaReport,
    StartShare,
)
from pentimento.domain.kept_quality import MOST_KEPT, KeptQuality
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.policies.serving.entry import STARTS

MAX_NAME_LENGTH = 256
MAX_BOUNDS = 64
MAX_COUNT = 2**63 - 1
# Of one pool between two reports. More than any frontdoor takes; a report that claims more would drown the averages of
# demand for minutes.
MAX_REQUESTS = 1_000_000
MAX_STEPS = 100_000
MAX_BATCH = 1024
_COUNTS = (
    "arrived_count",
    "completed_count",
    "dropped_count",
    "late_count",
    "queue_length",
    "scored_count",
    "deferred_count",
    "stood_in_count",
)
INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
ADDRESS = re.compile(r"unix:[^\s\x00]{1,250}|[^\s\x00]{1,250}:\d{1,5}")


def check_replica(replica: Replica) -> None:
    """Raise InvalidArgument for a registration that no later step could use."""
    check_instance(replica.instance_id, replica.generation)
    if not ADDRESS.fullmatch(replica.address) or not _port_is_valid(replica.address):
        raise InvalidArgument.of("replica.address", f"must be unix:/path or host:port, got {replica.address[:80]!r}")
    _check_names("replica.available_models", replica.available_models)
    _check_names("replica.resident_models", replica.resident_models)
    check_text("replica.device", replica.device)
    check_text("replica.build_version", replica.build_version)
    _check_count("replica.device_memory_bytes", replica.device_memory_bytes)
    if len(replica.costs) > MAX_TOLD_COUNT:
        raise InvalidArgument.of("replica.costs", f"must be at most {MAX_TOLD_COUNT} models, got {len(replica.costs)}")
    for index, cost in enumerate(replica.costs):
        check_cost(f"replica.costs[{index}]", cost)
    _check_adapters("replica.adapters", replica.adapters)
    check_text("replica.held_model_digest", replica.held_model_digest)


def check_instance(instance_id: str, generation: int) -> None:
    if not INSTANCE_ID.fullmatch(instance_id):
        limit = "must be 1 to 128 letters, digits and . _ : @ / -"
        raise InvalidArgument.of("instance_id", f"{limit}, got {instance_id[:80]!r}")
    if not 1 <= generation <= MAX_COUNT:
        raise InvalidArgument.of("generation", f"must be between 1 and {MAX_COUNT}, got {generation}")


def check_report(report: ReplicaReport) -> None:
    """Raise InvalidArgument for a report that cannot be true."""
    check_instance(report.instance_id, report.generation)
    _check_names("resident_models", report.resident_models)
    check_text("held_model_digest", report.held_model_digest)
    _check_share("busy_share", report.busy_share)
    for field in ("queue_length", "running_count"):
        _check_count(field, getattr(report, field), MAX_REQUESTS)
    for field in ("completed_count", "failed_count"):
        _check_count(field, getattr(report, field))
    if len(report.demand) > MAX_TOLD_COUNT:
        raise InvalidArgument.of("demand", f"must name at most {MAX_TOLD_COUNT} pools, got {len(report.demand)}")
    for index, demand in enumerate(report.demand):
        _check_demand(f"demand[{index}]", demand)


def _check_demand(field: str, demand: PoolDemand) -> None:
    check_text(f"{field}.model", demand.model)
    check_text(f"{field}.pool", demand.pool)
    for count in _COUNTS:
        _check_count(f"{field}.{count}", getattr(demand, count), MAX_REQUESTS)
    if demand.deferred_count > demand.scored_count:
        limit = f"must be at most scored_count, {demand.scored_count}, got {demand.deferred_count}"
        raise InvalidArgument.of(f"{field}.deferred_count", limit)
    if len(demand.starts) > MAX_TOLD_COUNT:
        raise InvalidArgument.of(f"{field}.starts", f"must be at most {MAX_TOLD_COUNT}, got {len(demand.starts)}")
    for start in demand.starts:
        _check_start(f"{field}.starts", start)
    if len(demand.confidences) not in (0, CONFIDENCE_BINS):
        limit = f"must be {CONFIDENCE_BINS} counts or none, got {len(demand.confidences)}"
        raise InvalidArgument.of(f"{field}.confidences", limit)
    for scored in demand.confidences:
        _check_count(f"{field}.confidences", scored, MAX_REQUESTS)
    _check_compared(f"{field}.compared", demand.compared)
    _check_kept(f"{field}.hits", demand.hits)
    if len(demand.adapters) > MAX_TOLD_COUNT:
        raise InvalidArgument.of(f"{field}.adapters", f"must be at most {MAX_TOLD_COUNT}, got {len(demand.adapters)}")
    _check_thinnable(f"{field}.thinnable", demand.thinnable)
    for adapter in demand.adapters:
        if not is_adapter_name(adapter.name):
            raise InvalidArgument.of(f"{field}.adapters.name", ADAPTER_NAME_RULE)
        _check_count(f"{field}.adapters.request_count", adapter.request_count, MAX_REQUESTS)


def _check_compared(field: str, compared: tuple[KeptQuality, ...]) -> None:
    if len(compared) not in (0, CONFIDENCE_BINS):
        raise InvalidArgument.of(field, f"must be {CONFIDENCE_BINS} sums or none, got {len(compared)}")
    for number, kept in enumerate(compared):
        _check_kept(f"{field}[{number}]", kept)


def _check_kept(field: str, sums: KeptQuality) -> None:
    _check_count(f"{field}.count", sums.count, MAX_REQUESTS)
    for part, most in (("kept", MOST_KEPT), ("squares", MOST_KEPT**2)):
        if not 0.0 <= getattr(sums, part) <= most * sums.count:
            limit = f"must be between 0 and {most:g} an image, {most * sums.count:g}, got {getattr(sums, part)}"
            raise InvalidArgument.of(f"{field}.{part}", limit)


def _check_thinnable(field: str, steps: ThinnableSteps) -> None:
    _check_count(f"{field}.request_count", steps.request_count, MAX_REQUESTS)
    for part in ("spare_shares", "lost_shares"):
        if not 0.0 <= getattr(steps, part) <= steps.request_count:
            limit = f"must be between 0 and request_count, {steps.request_count}, got {getattr(steps, part)}"
            raise InvalidArgument.of(f"{field}.{part}", limit)


def _check_start(field: str, start: StartShare) -> None:
    if start.kind not in STARTS:
        raise InvalidArgument.of(f"{field}.kind", f"must be noise, latent or image, got {start.kind[:80]!r}")
    check_text(f"{field}.model", start.model)
    _check_count(f"{field}.start_step", start.start_step, MAX_STEPS)
    _check_count(f"{field}.step_count", start.step_count, MAX_STEPS)
    _check_count(f"{field}.request_count", start.request_count, MAX_REQUESTS)
    if start.step_count and start.start_step >= start.step_count:
        limit = f"must be below step_count, {start.step_count}, got {start.start_step}"
        raise InvalidArgument.of(f"{field}.start_step", limit)


def check_cost(field: str, cost: ModelCost) -> None:
    """Raise InvalidArgument for a cost that nothing can be planned with."""
    check_text(f"{field}.model", cost.model)
    _check_count(f"{field}.memory_bytes", cost.memory_bytes)
    if not 0.0 <= cost.load_s <= MAX_COST_S:
        raise InvalidArgument.of(f"{field}.load_s", f"must be between 0 and {MAX_COST_S:g}, got {cost.load_s}")
    _check_count(f"{field}.step_count", cost.step_count, MAX_STEPS)
    for name, seconds in (("fixed_s", cost.fixed_s), ("finish_s", cost.finish_s)):
        if not 0.0 <= seconds <= MAX_COST_S:
            raise InvalidArgument.of(f"{field}.{name}", f"must be between 0 and {MAX_COST_S:g}, got {seconds}")
    for size, run_s in cost.run_s:
        if not 1 <= size <= MAX_BATCH:
            raise InvalidArgument.of(f"{field}.batches.batch_size", f"must be between 1 and {MAX_BATCH}, got {size}")
        if not MIN_COST_S <= run_s <= MAX_COST_S:
            limit = f"must be between {MIN_COST_S:g} and {MAX_COST_S:g}"
            raise InvalidArgument.of(f"{field}.batches.run_s", f"{limit}, got {run_s}")


def _check_adapters(field: str, adapters: tuple[Adapter, ...]) -> None:
    if len(adapters) > MAX_TOLD_COUNT:
        raise InvalidArgument.of(field, f"must be at most {MAX_TOLD_COUNT}, got {len(adapters)}")
    for index, adapter in enumerate(adapters):
        where = f"{field}[{index}]"
        if not is_adapter_name(adapter.name):
            raise InvalidArgument.of(f"{where}.name", ADAPTER_NAME_RULE)
        for name, digest in (("digest", adapter.digest), ("base_digest", adapter.base_digest)):
            if not (is_digest(digest) or (name == "base_digest" and not digest)):
                raise InvalidArgument.of(f"{where}.{name}", "must be sha256:<64 hex digits>")
        check_text(f"{where}.family", adapter.family)
        check_text(f"{where}.licence", adapter.licence)
        _check_share(f"{where}.latest_start_fraction", adapter.latest_start_fraction)
        _check_bounds(f"{where}.pipelining_bounds", adapter.pipelining_bounds)
    named = [(adapter.kind, adapter.name) for adapter in adapters]
    if len(set(named)) < len(named):
        raise InvalidArgument.of(field, "must name each adapter once")


def _check_bounds(field: str, bounds: tuple[PipeliningBound, ...]) -> None:
    if len(bounds) > MAX_BOUNDS:
        raise InvalidArgument.of(field, f"must be at most {MAX_BOUNDS}, got {len(bounds)}")
    for bound in bounds:
        if not 0 <= bound.first_step < bound.step_count:
            limit = f"must be 0 to {bound.step_count - 1} steps of {bound.step_count}"
            raise InvalidArgument.of(f"{field}.first_step", f"{limit}, got {bound.first_step}")


def _check_share(field: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise InvalidArgument.of(field, f"must be between 0 and 1, got {value}")


def _check_count(field: str, value: int, limit: int = MAX_COUNT) -> None:
    if not 0 <= value <= limit:
        raise InvalidArgument.of(field, f"must be between 0 and {limit}, got {value}")


def _check_names(field: str, names: tuple[str, ...]) -> None:
    if len(names) > MAX_TOLD_COUNT:
        raise InvalidArgument.of(field, f"must be at most {MAX_TOLD_COUNT} names, got {len(names)}")
    for name in names:
        if not name:
            raise InvalidArgument.of(field, "must not hold an empty name")
        check_text(field, name)


def check_text(field: str, text: str) -> None:
    """Raise InvalidArgument for a text that is too long or cannot be shown."""
    if len(text) > MAX_NAME_LENGTH or not (text.isprintable() or not text):
        limit = f"must be at most {MAX_NAME_LENGTH} printable characters"
        raise InvalidArgument.of(field, f"{limit}, got {len(text)} characters")


def _port_is_valid(address: str) -> bool:
    return address.startswith("unix:") or 1 <= int(address.rpartition(":")[2]) <= 65535
