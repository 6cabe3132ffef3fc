"""Check reports of replicas and registrations of operators. Each error names the field and its limit; nothing is
stored before all checks have passed."""

import re
from collections.abc import Callable, Sequence, Sized
from typing import TypeVar

from pentimento.domain.adapters import (
    ADAPTED_FAMILIES,
    ADAPTER_NAME_RULE,
    Adapter,
    LoraUpload,
    is_adapter_name,
    is_digest,
)
from pentimento.domain.components import HeldComponent, StoredBytes, Tier, TierSpeed
from pentimento.domain.demand import MOST_KEPT, KeptQuality, PoolDemand, StartShare
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import (
    CONFIDENCE_BINS,
    MAX_COST_S,
    MAX_TOLD_COUNT,
    MIN_COST_S,
    MeasuredDeferral,
    ModelCost,
    Replica,
    ReplicaReport,
)
from pentimento.domain.models import MODEL_NAME_RULE, CascadeVariant, Handover, is_model_name
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel
from pentimento.files.signed_entries import check_signed_upload
from pentimento.policies.plan.entry import STARTS

T = TypeVar("T")

MAX_NAME_LENGTH = 256
# JSON with the longest name and licence, escaped. Every plan carries one for each uploaded LoRA.
MAX_SIGNED_ENTRY = 8192
MAX_COUNT = 2**63 - 1
# Limit of one pool between two reports, above any frontdoor's rate. A larger count would distort the averages of demand
# for minutes.
MAX_REQUESTS = 1_000_000
MAX_STEPS = 100_000
MAX_BATCH = 1024
MAX_STAGES = 8
MAX_POINTS = 1024
MAX_DIGESTS = 256
# LoRAs of one request after the first one.
MAX_OTHER_LORAS = 64
INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
ADDRESS = re.compile(r"unix:[^\s\x00]{1,250}|[^\s\x00]{1,250}:\d{1,5}")
_COUNTS: tuple[str, ...] = (
    "arrived_count",
    "completed_count",
    "dropped_count",
    "late_count",
    "queue_length",
    "scored_count",
)
_COUNTS += ("deferred_count", "stood_in_count")


def check_replica(replica: Replica) -> None:
    """Raise InvalidArgument for a registration with invalid fields."""
    check_instance(replica.instance_id, replica.generation)
    is_local, port = replica.address.startswith("unix:"), replica.address.rpartition(":")[2]
    if not ADDRESS.fullmatch(replica.address) or not (is_local or 1 <= int(port) <= 65535):
        raise InvalidArgument.of("replica.address", f"must be unix:/path or host:port, got {replica.address[:80]!r}")
    _check_names("replica.available_models", replica.available_models)
    _check_names("replica.resident_models", replica.resident_models)
    check_texts("replica", replica, "device", "build_version", "held_model_digest")
    check_within("replica.device_memory_bytes", replica.device_memory_bytes, MAX_COUNT)
    check_each("replica.costs", replica.costs, check_cost, " models")
    check_each("replica.adapters", replica.adapters, _check_adapter)
    check_each("replica.deferrals", replica.deferrals, _check_measured_deferral)
    check_each("replica.weights", replica.weights, _check_weights)
    check_each("replica.short_models", replica.short_models, _check_short)
    check_each("replica.stored", replica.stored, _check_stored, most=2 * MAX_TOLD_COUNT)
    check_within("replica.adapter_memory_bytes", replica.adapter_memory_bytes, MAX_COUNT)
    if replica.change is not None:
        _check_change("replica.change", replica.change)
    check_distinct("replica.adapters", [(one.kind, one.name) for one in replica.adapters], "name each adapter once")


def check_instance(instance_id: str, generation: int) -> None:
    """Raise InvalidArgument for an invalid instance id or generation."""
    if not INSTANCE_ID.fullmatch(instance_id):
        limit = "must be 1 to 128 letters, digits and . _ : @ / -"
        raise InvalidArgument.of("instance_id", f"{limit}, got {instance_id[:80]!r}")
    check_within("generation", generation, MAX_COUNT, 1)


def check_report(report: ReplicaReport) -> None:
    """Raise InvalidArgument for a report with impossible values."""
    check_instance(report.instance_id, report.generation)
    _check_names("resident_models", report.resident_models)
    check_text("held_model_digest", report.held_model_digest)
    check_within("busy_share", report.busy_share, 1)
    _check_numbers("", report, MAX_REQUESTS, "queue_length", "running_count", "edge_count", "edge_call_count")
    _check_numbers("", report, MAX_COUNT, "completed_count", "failed_count")
    check_each("demand", report.demand, _check_demand, " pools")
    # All that a replica may hold, and as many that it does not hold any longer.
    check_each("component_changes", report.component_changes, _check_held, most=2 * MAX_TOLD_COUNT)
    for field, speeds in (("load_speeds", report.load_speeds), ("lora_speeds", report.lora_speeds)):
        check_each(field, speeds, _check_speed, " tiers", len(Tier))


def check_digests(digests: Sequence[str]) -> None:
    """Raise InvalidArgument for too many digests, or for one that is none."""
    check_each("digests", digests, check_digest, most=MAX_DIGESTS)


def check_cascade(cascade: CascadeVariant) -> None:
    """Raise InvalidArgument for a cascade that cannot serve requests."""
    count = len(cascade.models)
    if not 2 <= count <= MAX_STAGES:
        raise InvalidArgument.of("cascade.models", f"must be 2 to {MAX_STAGES} models, got {count}")
    check_each("cascade.models", cascade.models, check_model_name)
    check_distinct("cascade.models", cascade.models, "name each model once")
    if len(cascade.handovers) != count - 1:
        limit = f"must be {count - 1}, one for each model but the last"
        raise InvalidArgument.of("cascade.handovers", f"{limit}, got {len(cascade.handovers)}")
    check_each("cascade.handovers", cascade.handovers, _check_handover)


def check_upload(upload: LoraUpload, max_bytes: int) -> None:
    """Raise InvalidArgument for a LoRA that cannot be served, before its file is received."""
    check_name("upload.name", upload.name)
    if upload.family not in ADAPTED_FAMILIES:
        limit = f"must be one of {', '.join(ADAPTED_FAMILIES)}"
        raise InvalidArgument.of("upload.family", f"{limit}, got {upload.family[:80]!r}")
    if not (1 <= len(upload.licence) <= MAX_NAME_LENGTH and upload.licence.isprintable()):
        limit = f"must be 1 to {MAX_NAME_LENGTH} printable characters"
        raise InvalidArgument.of("upload.licence", f"{limit}, got {len(upload.licence)}")
    check_digest("upload.digest", upload.digest)
    if upload.base_digest:
        check_digest("upload.base_digest", upload.base_digest)
    check_within("upload.size_bytes", upload.size_bytes, max_bytes, 1)
    check_within("upload.latest_start_fraction", upload.latest_start_fraction, 1)
    if len(upload.signed_entry) > MAX_SIGNED_ENTRY:
        limit = f"must have at most {MAX_SIGNED_ENTRY} characters"
        raise InvalidArgument.of("upload.signed_entry", f"{limit}, got {len(upload.signed_entry)}")
    if upload.signed_entry:
        check_signed_upload(upload, "upload.signed_entry")


def check_name(field: str, name: str) -> None:
    """Raise InvalidArgument for a name that no adapter can have."""
    if not is_adapter_name(name):
        raise InvalidArgument.of(field, f"{ADAPTER_NAME_RULE}, got {name[:80]!r}")


def check_model_name(field: str, name: str) -> None:
    """Raise InvalidArgument for a name that no model can have."""
    if not is_model_name(name):
        raise InvalidArgument.of(field, f"{MODEL_NAME_RULE}, got {name[:80]!r}")


def _check_demand(field: str, demand: PoolDemand) -> None:
    check_texts(field, demand, "model", "pool")
    _check_numbers(f"{field}.", demand, MAX_REQUESTS, *_COUNTS)
    if demand.deferred_count > demand.scored_count:
        limit = f"must be at most scored_count, {demand.scored_count}, got {demand.deferred_count}"
        raise InvalidArgument.of(f"{field}.deferred_count", limit)
    check_each(f"{field}.starts", demand.starts, _check_start)
    _check_bins(f"{field}.confidences", demand.confidences, "counts")
    for index, count in enumerate(demand.confidences):
        check_within(f"{field}.confidences[{index}]", count, MAX_REQUESTS)
    _check_bins(f"{field}.compared", demand.compared, "sums")
    check_each(f"{field}.compared", demand.compared, _check_kept)
    _check_kept(f"{field}.hits", demand.hits)
    _check_thinnable(f"{field}.thinnable", demand.thinnable)
    _check_at_most(f"{field}.adapters", demand.adapters)
    for adapter in demand.adapters:
        check_name(f"{field}.adapters.name", adapter.name)
        check_each(f"{field}.adapters.others", adapter.others, check_name, most=MAX_OTHER_LORAS)
        check_within(f"{field}.adapters.request_count", adapter.request_count, MAX_REQUESTS)


def _check_start(field: str, start: StartShare) -> None:
    if start.kind not in STARTS:
        raise InvalidArgument.of(f"{field}.kind", f"must be noise, latent or image, got {start.kind[:80]!r}")
    check_text(f"{field}.model", start.model)
    _check_numbers(f"{field}.", start, MAX_STEPS, "start_step", "step_count")
    check_within(f"{field}.request_count", start.request_count, MAX_REQUESTS)
    if start.step_count and start.start_step >= start.step_count:
        limit = f"must be below step_count, {start.step_count}, got {start.start_step}"
        raise InvalidArgument.of(f"{field}.start_step", limit)


def _check_bins(field: str, values: Sized, what: str) -> None:
    if len(values) not in (0, CONFIDENCE_BINS):
        raise InvalidArgument.of(field, f"must be {CONFIDENCE_BINS} {what} or none, got {len(values)}")


def _check_kept(field: str, sums: KeptQuality) -> None:
    check_within(f"{field}.count", sums.count, MAX_REQUESTS)
    for part, most in (("kept", MOST_KEPT), ("squares", MOST_KEPT**2)):
        if not 0.0 <= getattr(sums, part) <= most * sums.count:
            limit = f"must be between 0 and {most:g} an image, {most * sums.count:g}, got {getattr(sums, part)}"
            raise InvalidArgument.of(f"{field}.{part}", limit)


def _check_thinnable(field: str, steps: ThinnableSteps) -> None:
    check_within(f"{field}.request_count", steps.request_count, MAX_REQUESTS)
    for part in ("spare_shares", "lost_shares"):
        if not 0.0 <= getattr(steps, part) <= steps.request_count:
            limit = f"must be between 0 and request_count, {steps.request_count}, got {getattr(steps, part)}"
            raise InvalidArgument.of(f"{field}.{part}", limit)


def check_cost(field: str, cost: ModelCost) -> None:
    """Raise InvalidArgument for a cost that cannot be planned with."""
    check_text(f"{field}.model", cost.model)
    check_within(f"{field}.memory_bytes", cost.memory_bytes, MAX_COUNT)
    check_within(f"{field}.step_count", cost.step_count, MAX_STEPS)
    _check_numbers(f"{field}.", cost, MAX_COST_S, "load_s", "fixed_s", "finish_s")
    for size, run_s in cost.run_s:
        check_within(f"{field}.batches.batch_size", size, MAX_BATCH, 1)
        check_within(f"{field}.batches.run_s", run_s, MAX_COST_S, MIN_COST_S)


def _check_adapter(field: str, adapter: Adapter) -> None:
    check_name(f"{field}.name", adapter.name)
    check_digest(f"{field}.digest", adapter.digest)
    if adapter.base_digest:
        check_digest(f"{field}.base_digest", adapter.base_digest)
    check_texts(field, adapter, "family", "licence")
    check_within(f"{field}.latest_start_fraction", adapter.latest_start_fraction, 1)


def _check_handover(field: str, handover: Handover) -> None:
    _check_deferral(field, handover)
    if not 0.0 <= handover.reuse_share < 1.0:
        limit = f"must be at least 0 and below 1, got {handover.reuse_share}"
        raise InvalidArgument.of(f"{field}.reuse_share", limit)
    if handover.reuse_profile is not None:
        raise InvalidArgument.of(f"{field}.reuse_profile", "must be absent: the hand-over profile gives it")


def _check_measured_deferral(field: str, deferral: MeasuredDeferral) -> None:
    _check_deferral(field, deferral)
    check_text(f"{field}.uninformative", deferral.uninformative)


def _check_deferral(field: str, handover: Handover | MeasuredDeferral) -> None:
    models = handover.discriminator.split(">")
    if len(models) < 2 or not all(map(is_model_name, models)):
        limit = "must be the models of the discriminator's cascade with > between them"
        raise InvalidArgument.of(f"{field}.discriminator", f"{limit}, got {handover.discriminator[:80]!r}")
    check_digest(f"{field}.discriminator_digest", handover.discriminator_digest)
    count = len(handover.thresholds)
    if not 2 <= count <= MAX_POINTS or len(handover.shares) != count:
        limit = f"must be 2 to {MAX_POINTS} points, a share for each threshold"
        raise InvalidArgument.of(f"{field}.shares", f"{limit}, got {count} and {len(handover.shares)}")
    for name in ("thresholds", "shares"):
        values = getattr(handover, name)
        if not all(0.0 <= value <= 1.0 for value in values) or list(values) != sorted(values):
            raise InvalidArgument.of(f"{field}.{name}", "must ascend within 0 and 1")


def _check_names(field: str, names: tuple[str, ...]) -> None:
    _check_at_most(field, names, of=" names")
    for name in names:
        if not name:
            raise InvalidArgument.of(field, "must not hold an empty name")
        check_text(field, name)


def check_texts(field: str, value: object, *parts: str) -> None:
    """Check the texts in the named fields."""
    for part in parts:
        check_text(f"{field}.{part}", getattr(value, part))


def _check_weights(field: str, weights: ComponentWeights) -> None:
    check_texts(field, weights, "component", "precision")
    check_within(f"{field}.size_bytes", weights.size_bytes, MAX_COUNT)


def _check_short(field: str, short: ShortModel) -> None:
    _check_model(f"{field}.model", short.model)
    _check_numbers(f"{field}.", short, MAX_COUNT, "needed_bytes", "budget_bytes")


def _check_change(field: str, change: ModelChange) -> None:
    _check_model(f"{field}.model", change.model)
    _check_numbers(f"{field}.", change, MAX_COUNT, "weight_bytes", "host_bytes", "device_bytes")


def check_text(field: str, text: str) -> None:
    """Raise InvalidArgument for a text that is too long or not printable."""
    if len(text) > MAX_NAME_LENGTH or not (text.isprintable() or not text):
        limit = f"must be at most {MAX_NAME_LENGTH} printable characters"
        raise InvalidArgument.of(field, f"{limit}, got {len(text)} characters")


def _check_model(field: str, name: str) -> None:
    # Names of models are those of their directories, in any letters.
    if not name:
        raise InvalidArgument.of(field, "must not be empty")
    check_text(field, name)


def _check_stored(field: str, stored: StoredBytes) -> None:
    _check_model(f"{field}.component", stored.component)
    check_within(f"{field}.size_bytes", stored.size_bytes, MAX_COUNT)


def _check_speed(field: str, speed: TierSpeed) -> None:
    check_within(f"{field}.seconds_per_gb", speed.seconds_per_gb, MAX_COST_S)


def _check_held(field: str, held: HeldComponent) -> None:
    check_digest(f"{field}.digest", held.digest)
    check_within(f"{field}.size_bytes", held.size_bytes, MAX_COUNT)


def check_digest(field: str, digest: str) -> None:
    """Raise InvalidArgument for a digest that is none."""
    if not is_digest(digest):
        raise InvalidArgument.of(field, f"must be sha256:<64 hex digits>, got {digest[:80]!r}")


def check_within(field: str, value: float, most: float, least: float = 0) -> None:
    """Raise InvalidArgument for a number out of its limits."""
    if not least <= value <= most:
        least_text, most_text = (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in (least, most))
        raise InvalidArgument.of(field, f"must be between {least_text} and {most_text}, got {value}")


def _check_numbers(prefix: str, value: object, most: float, *parts: str) -> None:
    for part in parts:
        check_within(f"{prefix}{part}", getattr(value, part), most)


def check_distinct(field: str, names: Sequence[object], rule: str) -> None:
    """Raise InvalidArgument for a repeated name."""
    if len(set(names)) < len(names):
        raise InvalidArgument.of(field, f"must {rule}")


def _check_at_most(field: str, items: Sized, most: int = MAX_TOLD_COUNT, of: str = "") -> None:
    if len(items) > most:
        raise InvalidArgument.of(field, f"must be at most {most}{of}, got {len(items)}")


def check_each(
    field: str, items: Sequence[T], check: Callable[[str, T], None], of: str = "", most: int = MAX_TOLD_COUNT
) -> None:
    """Check the number of items, then each item, named by its index."""
    _check_at_most(field, items, most, of)
    for index, item in enumerate(items):
        check(f"{field}[{index}]", item)
