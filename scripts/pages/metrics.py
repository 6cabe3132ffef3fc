"""List the metrics that the processes register, by process, and write their page."""

import importlib
from collections.abc import Iterable
from functools import cache
from typing import Any

from pages.monitoring import Metrics
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

# Headings of metrics that several processes share.
SHARED_METRICS = {
    "pentimento.rpc.call_limits": "All processes",
    "pentimento.tensors.outgoing": "Processes that exchange tensors",
    "pentimento.service.components": "Processes that share components",
}
METRICS = (
    "pentimento.rpc.call_limits",
    "pentimento.tensors.outgoing",
    "pentimento.service.components",
    "services.frontdoor.metrics",
    "services.edge.metrics",
    "services.embedder.metrics",
    "services.vectordb_gateway.metrics",
    "services.unet_worker.metrics",
    "services.controller.metrics",
    "services.controlnet_svc.metrics",
    "services.discriminator.metrics",
)


def metrics_page(head: str) -> str:
    """Return the page of every metric, below the line that says where it comes from."""
    lines = [
        head,
        "# Metrics",
        "",
        "Each process serves Prometheus metrics at `/metrics` (`--metrics-listen`). No label holds a prompt, a user or "
        "a tenant. [Alerts](../runbook.md#what-to-alert-on).",
        "",
    ]
    for owner, metrics in metrics_by_owner():
        lines += [f"## {owner}", "", "| metric | kind by labels | |", "| --- | --- | --- |"]
        for name, (kind, labels, text) in sorted(metrics.items()):
            suffix = "_total" if kind == "counter" else ""
            shown = f"{kind} by {', '.join(f'`{label}`' for label in labels)}" if labels else kind
            lines.append(f"| `{name}{suffix}` | {shown} | {cell(text)} |")
        lines.append("")
    return "\n".join(lines) + "\n"


@cache
def metrics_by_owner() -> list[tuple[str, Metrics]]:
    """Return the metrics of each module that registers some, with the heading of its process."""
    known: set[str] = set()
    found = []
    for module in METRICS:
        importlib.import_module(module)
        metrics = {name: metric for name, metric in own_metrics().items() if name not in known}
        known |= set(metrics)
        found.append((SHARED_METRICS.get(module, module.split(".")[1]), metrics))
    return found


def own_metrics() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return the suite's registered metrics by name: kind, labels and text."""
    found = {}
    for collector in REGISTRY._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            found[collector._name] = (collector._type, tuple(collector._labelnames), collector._documentation)
        else:  # this collector makes its metrics at each scrape
            families: Iterable[Any] = collector.collect()
            found |= {one.name: (one.type, getattr(one, "_labelnames", ()), one.documentation) for one in families}
    return {name: metric for name, metric in found.items() if name.startswith("pentimento_")}


def cell(text: str) -> str:
    """Return text that does not break a table."""
    return text.replace("|", "\\|")
