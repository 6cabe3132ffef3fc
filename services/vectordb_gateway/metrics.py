"""What the gateway counts, beside the RPC metrics that every process has."""

from pentimento.domain.online_quality import ReuseQuality
from pentimento.telemetry import counter, gauge, histogram

LOOKUPS = counter("pentimento_gateway_lookups_total", "Lookups by outcome.", ["outcome"])
SEARCH_SECONDS = histogram("pentimento_gateway_search_seconds", "Vector search and ledger read of one lookup.")
STUCK_SECONDS = gauge(
    "pentimento_gateway_stuck_seconds",
    "How long the oldest call has been waited for: reads (searches, reads of the ledger) and writes (of the ledger), "
    "which hang above 6, so that the process is NOT_SERVING, and a task of maintenance, which hangs above 120.",
    ["what"],
)
STARTS = counter(
    "pentimento_gateway_starts_total",
    "Starts from the cache by what a worker made of them: taken, or passed_over for noise as it could not use them.",
    ["kind", "outcome"],
)
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
SUSPECT_OBJECTS = gauge(
    "pentimento_gateway_suspect_objects_count",
    "Objects that a reading found missing or corrupt: their entries are not found until a reading is good.",
)
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
PLANS = counter("pentimento_gateway_plans_total", "Plans that the cache heard of: followed or refused.", ["outcome"])
QUALITY_SAMPLES = counter(
    "pentimento_gateway_quality_samples_total",
    "Hits painted again from noise: counted, repeated, or unmatched where no table has their threshold any more.",
    ["outcome"],
)
_THRESHOLD = ["model", "kind", "saved_share"]
REUSE_SIMILARITY = gauge(
    "pentimento_gateway_reuse_threshold_similarity",
    "Similarity from which on a model may skip that share of its steps, of profiled and in_force.",
    [*_THRESHOLD, "which"],
)
KEPT_SHARE = gauge(
    "pentimento_gateway_reuse_kept_share",
    "Share of hits painted again that kept the quality promised: low and high bound (95 %), and seen.",
    [*_THRESHOLD, "which"],
)
ACHIEVED_ALPHA = gauge(
    "pentimento_gateway_reuse_alpha_share",
    "Share of the from-scratch quality that 95 % of hits painted again kept: low and high bound (95 %), and seen.",
    [*_THRESHOLD, "which"],
)
REUSE_SAMPLES = gauge(
    "pentimento_gateway_reuse_samples_count", "Hits painted again that those figures are made of.", _THRESHOLD
)


def publish_quality(model_digest: str, quality: ReuseQuality) -> None:
    """Set the gauges of a threshold."""
    labels = _labels(model_digest, quality.from_image, quality.saved_share)
    REUSE_SIMILARITY.labels(*labels, "profiled").set(quality.profiled_similarity)
    REUSE_SIMILARITY.labels(*labels, "in_force").set(quality.similarity)
    achieved = quality.achieved
    REUSE_SAMPLES.labels(*labels).set(achieved.sample_count if achieved is not None else 0)
    if achieved is None:
        # Those of before are of hits that the threshold lets through no more.
        _withdraw_kept(labels)
        return
    for which, share, alpha in (
        ("low", achieved.kept_share_low, achieved.alpha_low),
        ("seen", achieved.kept_share, achieved.alpha),
        ("high", achieved.kept_share_high, achieved.alpha_high),
    ):
        KEPT_SHARE.labels(*labels, which).set(share)
        ACHIEVED_ALPHA.labels(*labels, which).set(alpha)


def withdraw_quality(model_digest: str, from_image: bool, saved_share: float) -> None:
    """Show nothing of a threshold that the model has no longer."""
    labels = _labels(model_digest, from_image, saved_share)
    for which in ("profiled", "in_force"):
        REUSE_SIMILARITY.remove(*labels, which)
    REUSE_SAMPLES.remove(*labels)
    _withdraw_kept(labels)


def _withdraw_kept(labels: tuple[str, str, str]) -> None:
    for which in ("low", "seen", "high"):
        KEPT_SHARE.remove(*labels, which)
        ACHIEVED_ALPHA.remove(*labels, which)


def _labels(model_digest: str, from_image: bool, saved_share: float) -> tuple[str, str, str]:
    return model_digest, "images" if from_image else "latents", f"{saved_share:g}"
