"""Metrics of the gateway; the RPC metrics of every process are not among them."""

from pentimento.domain.online_quality import ReuseQuality
from pentimento.telemetry import counter, gauge, histogram

LOOKUPS = counter("pentimento_gateway_lookups_total", "Lookups by outcome.", ["outcome"])
SEARCH_SECONDS = histogram("pentimento_gateway_search_seconds", "Vector search and ledger read of a lookup.")
STUCK_SECONDS = gauge(
    "pentimento_gateway_stuck_seconds",
    "Age of the oldest running call: reads and writes (above 6: NOT_SERVING), maintenance (above 120: hung).",
    ["what"],
)
HOLES = counter(
    "pentimento_gateway_holes_total",
    "Lookups without the latent that the nearest entry's similarity allows, by start: latent (smaller K), noise.",
    ["start"],
)
HOLE_STEPS = counter("pentimento_gateway_hole_steps_total", "Steps that starts save less because of holes.")
STARTS = counter(
    "pentimento_gateway_starts_total",
    "Cached starts: taken, or passed_over (unusable).",
    ["kind", "outcome"],
)
PREDICTIONS = counter(
    "pentimento_gateway_predictions_total", "Lookups under the match predictor by ruling.", ["ruling"]
)
PREDICTOR_TRAININGS = counter("pentimento_gateway_predictor_trainings_total", "Trainings of the match predictor.")
PREDICTOR_ON = gauge("pentimento_gateway_predictor_on_count", "1 while the match predictor is active.")
PREDICTOR_NET_SECONDS = gauge(
    "pentimento_gateway_predictor_net_seconds",
    "Gain of skipped searches since the start: time saved less lost hits and own time.",
)
GRANTS = counter("pentimento_gateway_grants_total", "Reservations by outcome.", ["outcome"])
COMMITS = counter("pentimento_gateway_commits_total", "Committed entries.")
INDEX_FAILURES = counter("pentimento_gateway_index_failures_total", "Index writes postponed to a later round.")
EVICTIONS = counter("pentimento_gateway_evictions_total", "Evicted entries.")
ITEM_EVICTIONS = counter("pentimento_gateway_item_evictions_total", "Evicted single latents and images.")
USES_LOST = counter(
    "pentimento_gateway_uses_lost_total", "Unrecorded uses of cached items, the ledger being down too long."
)
BAD_OBJECTS = counter("pentimento_gateway_bad_objects_total", "Reported objects by finding.", ["finding"])
SUSPECT_OBJECTS = gauge(
    "pentimento_gateway_suspect_objects_count",
    "Missing or corrupt objects, hidden until read well.",
)
REPAIRS = counter("pentimento_gateway_repairs_total", "Repairs by the reconciliation.", ["kind"])
MAINTENANCE_FAILURES = counter(
    "pentimento_gateway_maintenance_failures_total", "Failed background tasks; they are retried.", ["task"]
)
ENTRIES = gauge("pentimento_gateway_entries_count", "Live entries.")
SIZE_BYTES = gauge("pentimento_gateway_size_bytes", "Bytes of live entries' objects.")
STORE_OBJECTS = gauge(
    "pentimento_gateway_store_objects_count",
    "This cache's objects in the store at the last comparison.",
)
STORE_SIZE_BYTES = gauge("pentimento_gateway_store_size_bytes", "Bytes of store_objects_count.")
PINNED_OBJECTS = gauge(
    "pentimento_gateway_pinned_objects_count", "Evicted objects kept only by a pin, at the last comparison."
)
PINNED_BYTES = gauge("pentimento_gateway_pinned_bytes", "Bytes of pinned_objects_count.")
READ_ONLY = gauge("pentimento_gateway_read_only_count", "1 while the cache is read-only.")
PLANS = counter("pentimento_gateway_plans_total", "Plans followed or rejected.", ["outcome"])
QUALITY_SAMPLES = counter(
    "pentimento_gateway_quality_samples_total",
    "Hits generated again from noise: counted, repeated, or unmatched (no table has their threshold).",
    ["outcome"],
)
_THRESHOLD = ["model", "reference", "kind", "saved_share"]
ThresholdKey = tuple[str, str, str, str]
REUSE_SIMILARITY = gauge(
    "pentimento_gateway_reuse_threshold_similarity",
    "Least similarity for skipping saved_share of the steps: profiled and in_force.",
    [*_THRESHOLD, "which"],
)
KEPT_SHARE = gauge(
    "pentimento_gateway_reuse_kept_share",
    "Share of sampled hits that kept the promised quality: low and high bound (95 %), and seen.",
    [*_THRESHOLD, "which"],
)
ACHIEVED_ALPHA = gauge(
    "pentimento_gateway_reuse_alpha_share",
    "Share of the from-scratch quality that 95 % of sampled hits kept: low and high bound (95 %), and seen.",
    [*_THRESHOLD, "which"],
)
REUSE_SAMPLES = gauge("pentimento_gateway_reuse_samples_count", "Sampled hits of a threshold.", _THRESHOLD)


def publish_quality(model_digest: str, quality: ReuseQuality) -> ThresholdKey:
    """Set the gauges of a threshold, and return its labels."""
    kind = "images" if quality.from_image else "latents"
    labels = (model_digest, quality.reference_model_digest, kind, f"{quality.saved_share:g}")
    REUSE_SIMILARITY.labels(*labels, "profiled").set(quality.profiled_similarity)
    REUSE_SIMILARITY.labels(*labels, "in_force").set(quality.similarity)
    achieved = quality.achieved
    REUSE_SAMPLES.labels(*labels).set(achieved.sample_count if achieved is not None else 0)
    if achieved is None:
        # Those of before are of hits that the threshold lets through no more.
        _withdraw_kept(labels)
        return labels
    for which, share, alpha in (
        ("low", achieved.kept_share_low, achieved.alpha_low),
        ("seen", achieved.kept_share, achieved.alpha),
        ("high", achieved.kept_share_high, achieved.alpha_high),
    ):
        KEPT_SHARE.labels(*labels, which).set(share)
        ACHIEVED_ALPHA.labels(*labels, which).set(alpha)
    return labels


def withdraw_quality(labels: ThresholdKey) -> None:
    """Withdraw the gauges of a threshold that the model has no longer."""
    for which in ("profiled", "in_force"):
        REUSE_SIMILARITY.remove(*labels, which)
    REUSE_SAMPLES.remove(*labels)
    _withdraw_kept(labels)


def _withdraw_kept(labels: ThresholdKey) -> None:
    for which in ("low", "seen", "high"):
        KEPT_SHARE.remove(*labels, which)
        ACHIEVED_ALPHA.remove(*labels, which)
