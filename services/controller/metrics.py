"""What the controller counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, gauge

ALLOCATION_FAILURES = counter(
    "pentimento_controller_allocation_failures_total",
    "Runs of an allocator that raised, hung or decided nonsense; the last good plan stood.",
    ["allocator"],
)
REFUSED_REPORTS = counter(
    "pentimento_controller_refused_reports_total", "Registrations and reports refused, by reason.", ["reason"]
)
PAUSES = counter("pentimento_controller_pauses_total", "Times the controller itself stood still and forgave silence.")
PLAN_SEQUENCE = gauge("pentimento_controller_plan_count", "Plans issued in the epoch in force.")
LIVE_REPLICAS = gauge(
    "pentimento_controller_live_replicas_count", "Replicas within their lease and not draining.", ["kind"]
)
WATCHERS = gauge("pentimento_controller_watchers_count", "Open WatchPlan streams.")
UNPLANNED_MODELS = gauge(
    "pentimento_controller_unplanned_models_count",
    "Models that workers could hold and that the policy gives to nobody, once a kind of device; GetFleet says why.",
)
MISMATCHED_WORKERS = gauge(
    "pentimento_controller_mismatched_workers_count",
    "Workers that hold another digest under a model's name than is registered, so that they are not planned.",
)
UNSAVED_PLANS = counter(
    "pentimento_controller_unsaved_plans_total", "Plans that the ledger did not keep: away, full, or of an older epoch."
)
