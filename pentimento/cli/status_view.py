"""Tables of `pentimento status`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse as FrontdoorStatus
from pentimento.api.generation.v1.generation_pb2 import ADAPTER_KIND_IP_ADAPTER
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2 import GetStatisticsResponse as CacheStatistics
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2 import MatchPredictor
from pentimento.cli.allocation_samples import (
    AllocationSample,
    plain_pool,
    plain_stage,
    sample_of_plan,
    sparkline,
    violation_shares,
)
from pentimento.clients.suite_status import SuiteStatus
from pentimento.domain.fleet import Fleet, Replica, ReplicaStatus
from pentimento.domain.reasons import Reason

# The part of a status that each process reports.
PARTS = {"controller": "fleet", "frontdoor": "frontdoor", "gateway": "cache"}
ALL_NEW: Mapping[str, float] = MappingProxyType({})
ALL_PLAIN: Mapping[str, str] = MappingProxyType({})


class LastTold:
    """Store each process's last status, which is shown while it does not answer."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Any, float]] = {}

    def filled(self, status: SuiteStatus, at_s: float) -> tuple[SuiteStatus, dict[str, float]]:
        """Return a status of `at_s` (monotonic seconds), with the last part of each process that does not answer and
        that part's age in seconds. Stores the status."""
        told = {name: getattr(status, part) for name, part in PARTS.items()}
        self._parts |= {name: (part, at_s) for name, part in told.items() if part is not None}
        old = {name: self._parts[name] for name in status.unanswered if name in self._parts}
        filled = replace(status, **{PARTS[name]: part for name, (part, _) in old.items()})
        return filled, {name: at_s - since_s for name, (_, since_s) in old.items()}


def render(status: SuiteStatus, ages_s: Mapping[str, float] = ALL_NEW) -> Iterator[RenderableType]:
    """Return a table of replicas, then lines for plan, queues, requests and cache. `ages_s`: ages of the last status of
    processes that do not answer."""
    if status.fleet is not None:
        yield fleet_table(status.fleet)
        yield from fleet_lines(status.fleet)
    if status.frontdoor is not None:
        pools = status.fleet.plan.pools if status.fleet is not None else ()
        yield from frontdoor_lines(status.frontdoor, {pool.pool: pool.model for pool in pools})
    yield from cell_lines(status.cells)
    if status.cache is not None:
        yield Text(f"cache     {cache_line(status.cache)}")
        yield Text(f"predictor {predictor_line(status.cache.match_predictor)}")
    for name, reason in status.unanswered.items():
        age = f"; its last report is {ages_s[name]:.0f} s old" if name in ages_s else ""
        yield Text(f"{name} does not answer: {reason}{age}", style="red")


def cell_lines(cells: Mapping[str, FrontdoorStatus]) -> Iterator[Text]:
    """Yield the queues and requests of each cell; the lines above have their sum."""
    for name, cell in sorted(cells.items()):
        queued = sum(pool.queued_count for pool in cell.pools)
        running = sum(pool.running_count for pool in cell.pools)
        why = f"; accepts none: {cell.not_accepting_reason}" if cell.not_accepting_reason else ""
        yield Text(f"cell      {name}: {queued} queued, {running} running, {cell.completed_count} completed{why}")


def fleet_lines(fleet: Fleet) -> Iterator[Text]:
    """Yield the plan in force, what it moves towards, f(t) of its cascades, its LoRAs and ControlNets with their
    numbers of replicas, what each replica must hold, the workers' weights, the models that their memory cannot
    hold and their last change, and the models that the plan leaves out."""
    plan, policy = fleet.plan, f" by {fleet.plan.allocator}" if fleet.plan.allocator else ""
    version = f"{plan.version.leader_epoch}.{plan.version.sequence}"
    yield Text(f"plan      {version}{policy}, {len(plan.assignments)} workers assigned")
    if (steered := fleet.steered) is not None:
        damped = f"{steered.damped_count:.1f} after damping"
        wanted = f"{steered.target_count} workers wanted, {damped}, {steered.planned_count} planned"
        yield Text(f"monitor   {steered.model}: {wanted}")
    yield from (Text(f"deferral  {one}") for one in fleet.deferrals)
    if plan.placements:
        counts = ((placement.adapter.name, len(placement.instance_ids)) for placement in plan.placements)
        yield Text(f"adapters  {', '.join(f'{name} ({count})' for name, count in counts)}")
    placed = {one.worker_id: one.prefetch for one in plan.assignments}
    services = dict.fromkeys(name for one in plan.components for name in one.instance_ids)
    placed |= {name: tuple(one.component for one in plan.components if name in one.instance_ids) for name in services}
    yield from (Text(f"holds     {name}: {', '.join(placed[name])}") for name in sorted(placed) if placed[name])
    replicas = [status.replica for status in sorted(fleet.replicas, key=lambda one: one.replica.instance_id)]
    yield from (Text(f"weights   {one.instance_id}: {weights_line(one)}") for one in replicas if one.weights)
    yield from (
        Text(f"memory    {replica.instance_id}: {short}", style="yellow")
        for replica in replicas
        for short in replica.short_models
    )
    yield from (Text(f"switch    {one.instance_id}: {one.change}") for one in replicas if one.change is not None)
    yield from (Text(f"note      {note}", style="yellow") for note in plan.notes)
    for one in fleet.unplanned:
        where = f" on {one.worker_id or one.device}" if one.worker_id or one.device else ""
        how = f"; {profiling(one.model)}" if one.reason == Reason.PROFILE_MISSING else ""
        yield Text(f"unplanned {one.model}{where}: {one.reason}{how}", style="yellow")


def weights_line(replica: Replica) -> str:
    """Return the device's memory of a worker's weights, and that of each component."""
    parts = ", ".join(
        f"{one.component} {one.size_bytes / 1e6:,.0f} MB {one.precision}{' in host memory' * one.in_host_memory}"
        for one in replica.weights
    )
    return f"{sum(one.device_bytes for one in replica.weights) / 1e9:.2f} GB ({parts})"


def profiling(model: str) -> str:
    """Return the command that profiles a model."""
    file = f"{model}-cost.json"
    return f"measure it with `pentimento profile cost {model}`, then `pentimento up … --profiles {file}`"


def sample_of(status: SuiteStatus, at_s: float) -> AllocationSample | None:
    """Return the allocation of a status; None if the controller did not answer."""
    if status.fleet is None:
        return None
    names = ("accepted_count", "completed_count", "failed_count", "rejected_count")
    counts = {}
    if status.frontdoor is not None:
        counts = {name: getattr(status.frontdoor, name) for name in names}
        counts["late_count"] = sum(pool.late_count for pool in status.frontdoor.pools)
    return sample_of_plan(at_s, status.fleet.plan, **counts)


def movement(history: Sequence[AllocationSample]) -> Iterator[Text]:
    """Return lines with the history of workers, thresholds, admission rate and violations, the newest value last."""
    if not history:
        return
    newest, most = history[-1], max((sum(sample.workers.values()) for sample in history), default=1)
    for model in sorted({model for sample in history for model in sample.workers}):
        line = sparkline((sample.workers.get(model, 0) for sample in history), most)
        yield Text(f"workers   {line} {newest.workers.get(model, 0)} {model}")
    for stage in sorted({stage for sample in history for stage in sample.thresholds}):
        line = sparkline((sample.thresholds.get(stage, math.nan) for sample in history), 1.0)
        yield Text(f"threshold {line} {newest.thresholds.get(stage, math.nan):.2f} {plain_stage(stage, {})}")
    yield Text(f"admission {sparkline((sample.admission_rate for sample in history), 1.0)} {newest.admission_rate:.0%}")
    violations = violation_shares(history)
    last = f"{violations[-1]:.0%}" if violations and violations[-1] == violations[-1] else "no requests"
    yield Text(f"violated  {sparkline(violations, 1.0)} {last}")


def fleet_table(fleet: Fleet) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("process", "kind", "state"):
        table.add_column(heading, no_wrap=True, overflow="ignore")
    table.add_column("models", overflow="fold")
    for heading in ("queue", "running", "done", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for status in sorted(fleet.replicas, key=lambda one: (one.replica.kind.value, one.replica.instance_id)):
        replica = status.replica
        counts = (status.queue_length, status.running_count, status.completed_count, status.failed_count)
        models = ", ".join(replica.resident_models)
        table.add_row(replica.instance_id, replica.kind.value, state(status), models, *map(str, counts))
    return table


def state(status: ReplicaStatus) -> Text:
    if not status.live:
        return Text(f"silent for {status.last_report_age_ms / 1000:.0f} s", style="red")
    return Text("draining", style="yellow") if status.draining else Text("up", style="green")


def frontdoor_lines(frontdoor: FrontdoorStatus, models: Mapping[str, str] = ALL_PLAIN) -> Iterator[Text]:
    """Yield the pools and the counts of requests; `models`: the plan's models by pool."""
    for model in frontdoor.models:
        steps = f"{model.default_steps} steps, guidance {model.default_guidance_scale:g}"
        size = f"{model.default_width_px} x {model.default_height_px}"
        yield Text(f"model     {model.name}: {steps}, {size} by default")
    for pool in frontdoor.pools:
        queued = f"{pool.queued_count} of {pool.queue_limit_count} queued"
        yield Text(f"pool      {plain_pool(pool.pool, models)}: {queued}, {pool.running_count} running")
    counts = f"{frontdoor.accepted_count} accepted, {frontdoor.completed_count} completed, "
    counts += f"{frontdoor.failed_count} failed, {frontdoor.cancelled_count} cancelled, "
    for adapter in frontdoor.rejected_adapters:
        word = "IP-Adapter" if adapter.kind == ADAPTER_KIND_IP_ADAPTER else "LoRA"
        yield Text(f"{word:<9} {adapter.name} fits no model here: {adapter.message} ({adapter.reason})", style="yellow")
    for worker in frontdoor.refusing_workers:
        yield Text(f"worker    {worker.address} refuses this frontdoor: {worker.message}", style="red")
    reasons = ", ".join(f"{one.request_count} {one.reason}" for one in frontdoor.rejections)
    rejected = f"{frontdoor.rejected_count} rejected{f' ({reasons})' if reasons else ''}"
    yield Text(f"requests  {counts}{rejected}, {frontdoor.retried_count} retried")
    if frontdoor.shadow_device_s:
        share = frontdoor.shadow_device_s / max(frontdoor.image_device_s, frontdoor.shadow_device_s)
        yield Text(f"shadows   {frontdoor.shadow_device_s:.1f} device seconds, {share:.1%} of the images'")
    if frontdoor.not_accepting_reason:
        yield Text(f"requests  none is accepted now: {frontdoor.not_accepting_reason}", style="red")


def cache_line(cache: CacheStatistics) -> str:
    share = f"{cache.hit_count / cache.lookup_count:.0%}" if cache.lookup_count else "none yet"
    line = f"{cache.entry_count} entries, {cache.size_bytes / 1e6:.1f} MB, {cache.lookup_count} lookups, hits {share}"
    if cache.hole_count:
        line += f", {cache.hole_count} lookups met a hole and lost {cache.hole_step_count} steps"
    if (earned := cache.earned).row_count:
        line += f", {earned.open_count} of {earned.row_count} thresholds earned, {earned.trial_count} trials since"
    return line + (", read-only" if cache.read_only else "")


def predictor_line(predictor: MatchPredictor) -> str:
    """Return whether searches of the cache are skipped, why, and the measured prices."""
    line = f"{'on' if predictor.on else 'off'}: {predictor.reason or 'the gateway does not say why'}"
    if predictor.search_s:
        line += f"; a search takes {1000 * predictor.search_s:.1f} ms"
    if predictor.image_s:
        line += f", an image {predictor.image_s:.2f} s"
    if predictor.skipped_count:
        line += f"; {predictor.skipped_count} searches skipped, {predictor.net_s:+.2f} s gained"
    return line
