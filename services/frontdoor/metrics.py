"""Define the frontdoor's metrics, in addition to the RPC metrics of every process."""

from math import nan

from pentimento.telemetry import counter, gauge, histogram

REQUESTS = counter(
    "pentimento_frontdoor_requests_total",
    "Requests by state: accepted, rejected, completed, failed, cancelled, expired.",
    ["state"],
)
# Alerts use rates, which miss a first event that creates its series.
for _state in ("accepted", "rejected", "completed", "failed", "cancelled", "expired"):
    REQUESTS.labels(_state)
CELL = gauge("pentimento_frontdoor_cell_count", "1 for the cell of this frontdoor; none without cells.", ["cell"])
OTHER_CELL = counter("pentimento_frontdoor_other_cell_total", "Calls that were led to another cell.")
QUEUE = gauge("pentimento_frontdoor_queue_count", "Requests waiting for a worker.", ["pool"])
RUNNING = gauge("pentimento_frontdoor_running_count", "Requests running on a worker.", ["pool"])
QUEUE_SECONDS = histogram("pentimento_frontdoor_queue_seconds", "Time from route to attempt.")
REQUEST_SECONDS = histogram("pentimento_frontdoor_request_seconds", "Time from arrival to end.", ["state"])
RERUNS = gauge("pentimento_frontdoor_reruns_count", "Attempts repeated after a lost worker, since the start.")
CACHE_SKIPS = counter(
    "pentimento_frontdoor_cache_skips_total",
    "Requests that did without a part of the cache, by stage and reason.",
    ["stage", "reason"],
)
for _stage in ("embedder", "image_embedder", "gateway", "reserve", "commit", "release", "report", "quality"):
    for _reason in ("slow", "unavailable", "refused"):
        CACHE_SKIPS.labels(_stage, _reason)
STARTS = counter(
    "pentimento_frontdoor_starts_total",
    "Finished images by actual start: noise, latent, image, passed_over (noise, because "
    "the cached start was unusable).",
    ["start"],
)
THINNED_STEPS = counter(
    "pentimento_frontdoor_thinned_steps_total", "Denoising steps skipped for a deadline or under load."
)
UNSCORED = counter("pentimento_frontdoor_unscored_total", "Light images that no discriminator scored.")
OTHER_DISCRIMINATORS = counter(
    "pentimento_frontdoor_other_discriminator_total", "Ignored scores of discriminators other than the plan's."
)
LEFT_OUT = counter(
    "pentimento_frontdoor_left_out_stages_total",
    "Light stages skipped because the prompt predicts that the image would be deferred.",
)
CACHE_LEFT_OUT = counter(
    "pentimento_frontdoor_cache_left_out_total",
    "Requests without a lookup because their tenant's hits save less than the cache costs.",
)
DEGRADED = counter("pentimento_frontdoor_degraded_total", "Images of reduced quality, by reason.", ["reason"])
SPOOLED_OBJECTS = gauge(
    "pentimento_frontdoor_spooled_objects_count", "Images in the journal waiting for the object store."
)
SPOOLED_BYTES = gauge("pentimento_frontdoor_spooled_bytes", "Bytes in the journal waiting for the object store.")
FREE_BYTES = gauge(
    "pentimento_frontdoor_free_bytes", "Free space on the fullest disk of journal and object store; NaN if unknown."
)
FREE_BYTES.set(nan)
BAD_PICTURES = counter(
    "pentimento_frontdoor_bad_pictures_total", "Stored images that are missing or corrupt.", ["finding"]
)
FORGOTTEN = counter(
    "pentimento_frontdoor_forgotten_pictures_total", "Images deleted early because of their tenant's quota."
)
SIGNED_IMAGES = counter(
    "pentimento_frontdoor_signed_images_total",
    "Images with a certificate configured: signed, failed (delivered without a manifest).",
    ["outcome"],
)
SWEPT = counter("pentimento_frontdoor_swept_objects_total", "Deleted objects without a request.")
WEBHOOKS = counter(
    "pentimento_frontdoor_webhooks_total",
    "Webhook calls: delivered, pending (to be retried), failed (no more tries).",
    ["outcome"],
)
QUOTA_REFUSALS = counter(
    "pentimento_frontdoor_quota_refusals_total", "Requests rejected by a tenant's quota, by quota.", ["quota"]
)
TENANTS = gauge("pentimento_frontdoor_tenants_count", "Tenants in the ledger.")
TENANT_KEYS = gauge("pentimento_frontdoor_tenant_keys_count", "Valid keys of tenants.")
SHADOWS = counter(
    "pentimento_frontdoor_shadows_total",
    "Hits to generate again: counted, not_counted, stopped (for a request), gone, failed, dropped.",
    ["outcome"],
)
COMPARED_IMAGES = counter(
    "pentimento_frontdoor_compared_images_total",
    "Light images of deferred requests compared with the heavy model's: counted, not_counted, failed.",
    ["outcome"],
)
KEPT_PAIRS = counter(
    "pentimento_frontdoor_kept_pairs_total", "Compared light and heavy images stored for training a discriminator."
)
SHADOW_SECONDS = counter(
    "pentimento_frontdoor_shadow_seconds_total", "Worker time for hits generated again, stopped ones included."
)
DEFERRED = gauge("pentimento_frontdoor_deferred_count", "Requests deferred to the next pool since the start.", ["pool"])
REFUSED_PLANS = gauge("pentimento_frontdoor_refused_plans_count", "Invalid plans since the start.")
WORKERS = gauge("pentimento_frontdoor_workers_count", "Workers with an open credit stream.")
REFUSING_WORKERS = gauge(
    "pentimento_frontdoor_refusing_workers_count", "Workers that consider another start of this frontdoor newer."
)
UNSAFE = counter(
    "pentimento_frontdoor_unsafe_total", "Prompts and images that classifiers called unsafe, by subject.", ("subject",)
)
