"""What the gateway counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, gauge, histogram

LOOKUPS = counter("pentimento_gateway_lookups_total", "Lookups by outcome.", ["outcome"])
SEARCH_SECONDS = histogram("pentimento_gateway_search_seconds", "Vector search and ledger read of one lookup.")
PREDICTIONS = counter(
    "pentimento_gateway_predictions_total", "Lookups under the match predictor by ruling.", ["ruling"]
)
PREDICTOR_TRAININGS = counter("pentimento_gateway_predictor_trainings_total", "Trainings of the match predictor.")
PREDICTOR_ON = gauge("pentimento_gateway_predictor_on_count", "1 while the match predictor rules on lookups.")
PREDICTOR_NET_SECONDS = gauge(
    "pentimento_gateway_predictor_net_seconds",
    "What skipped searches gained since the start: saved, forgone, own time.",
)
GRANTS = counter("pentimento_gateway_grants_total", "Reservations by outcome.", ["outcome"])
COMMITS = counter("pentimento_gateway_commits_total", "Entries committed.")
INDEX_FAILURES = counter("pentimento_gateway_index_failures_total", "Writes to the index put off to a later round.")
EVICTIONS = counter("pentimento_gateway_evictions_total", "Entries evicted to make room.")
ITEM_EVICTIONS = counter(
    "pentimento_gateway_item_evictions_total", "Single latents and images evicted to make room for others."
)
USES_LOST = counter(
    "pentimento_gateway_uses_lost_total", "Uses of cached items that were not noted, the ledger being away too long."
)
BAD_OBJECTS = counter("pentimento_gateway_bad_objects_total", "Reports of bad objects by what was found.", ["finding"])
REPAIRS = counter("pentimento_gateway_repairs_total", "Leftovers put right by the reconciliation.", ["kind"])
MAINTENANCE_FAILURES = counter(
    "pentimento_gateway_maintenance_failures_total", "Background tasks that failed and will be tried again.", ["task"]
)
ENTRIES = gauge("pentimento_gateway_entries_count", "Live entries.")
SIZE_BYTES = gauge("pentimento_gateway_size_bytes", "Bytes of the objects of live entries.")
STORE_OBJECTS = gauge(
    "pentimento_gateway_store_objects_count",
    "Objects of this cache in the object store at the last comparison, live or not.",
)
STORE_SIZE_BYTES = gauge("pentimento_gateway_store_size_bytes", "Bytes of those objects.")
PINNED_OBJECTS = gauge(
    "pentimento_gateway_pinned_objects_count", "Evicted objects that stay for a pin alone, at the last comparison."
)
PINNED_BYTES = gauge("pentimento_gateway_pinned_bytes", "Bytes of those pinned objects.")
READ_ONLY = gauge("pentimento_gateway_read_only_count", "1 while the cache takes nothing new.")
