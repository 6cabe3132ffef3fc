"""Define the controller's metrics, in addition to the RPC metrics of every process."""

from pentimento.telemetry import counter, gauge

ALLOCATION_FAILURES = counter(
    "pentimento_controller_allocation_failures_total",
    "Decisions that raised, hung or were invalid; the last good plan stayed.",
    ["allocator"],
)
REFUSED_REPORTS = counter(
    "pentimento_controller_refused_reports_total", "Rejected registrations and reports by reason.", ["reason"]
)
PAUSES = counter(
    "pentimento_controller_pauses_total", "Pauses of the controller itself; silence during them is forgiven."
)
PLAN_SEQUENCE = gauge("pentimento_controller_plan_count", "Plans of this epoch.")
LIVE_REPLICAS = gauge(
    "pentimento_controller_live_replicas_count", "Replicas within their lease and not draining.", ["kind"]
)
WATCHERS = gauge("pentimento_controller_watchers_count", "Open WatchPlan streams.")
UNPLANNED_MODELS = gauge(
    "pentimento_controller_unplanned_models_count",
    "Models per kind of device that the policy cannot plan; GetFleet has the reason.",
)
MISMATCHED_WORKERS = gauge(
    "pentimento_controller_mismatched_workers_count",
    "Workers with another model digest than registered; they are not planned.",
)
UNSAVED_PLANS = counter(
    "pentimento_controller_unsaved_plans_total", "Plans not saved: ledger down, full, or of an older epoch."
)
