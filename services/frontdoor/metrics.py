"""What the frontdoor counts, beside the RPC metrics that every process has."""

from math import nan

from pentimento.telemetry import counter, gauge, histogram

REQUESTS = counter(
    "pentimento_frontdoor_requests_total",
    "Requests by what became of them: accepted, rejected, completed, failed, cancelled, expired.",
    ["state"],
)
# Alerts go by rates, which see nothing of a count that begins with the first event.
for _state in ("accepted", "rejected", "completed", "failed", "cancelled", "expired"):
    REQUESTS.labels(_state)
QUEUE = gauge("pentimento_frontdoor_queue_count", "Requests that wait for a worker.", ["pool"])
RUNNING = gauge("pentimento_frontdoor_running_count", "Requests that a worker runs.", ["pool"])
QUEUE_SECONDS = histogram("pentimento_frontdoor_queue_seconds", "From the route to the attempt.")
REQUEST_SECONDS = histogram("pentimento_frontdoor_request_seconds", "From arrival to the end.", ["state"])
RERUNS = gauge("pentimento_frontdoor_reruns_count", "Attempts repeated because a worker was lost, since the start.")
CACHE_SKIPS = counter(
    "pentimento_frontdoor_cache_skips_total",
    "Requests painted without what the cache could have given or taken, by stage and reason.",
    ["stage", "reason"],
)
for _stage in ("embedder", "gateway", "reserve", "commit", "release", "report", "quality"):
    for _reason in ("slow", "unavailable", "refused"):
        CACHE_SKIPS.labels(_stage, _reason)
STARTS = counter(
    "pentimento_frontdoor_starts_total",
    "Pictures that workers painted, by where they really started: noise, latent, image, or passed_over: from noise, as "
    "the worker could not use what the cache gave.",
    ["start"],
)
THINNED_STEPS = counter(
    "pentimento_frontdoor_thinned_steps_total",
    "Denoising steps that attempts were sent to leave out, to meet a deadline or under load.",
)
UNSCORED = counter(
    "pentimento_frontdoor_unscored_total", "Light pictures that no discriminator scored; the settings say what then."
)
OTHER_DISCRIMINATORS = counter(
    "pentimento_frontdoor_other_discriminator_total",
    "Answers of discriminators that are not the one whose deferral curve the plan follows; they do not count.",
)
LEFT_OUT = counter(
    "pentimento_frontdoor_left_out_stages_total",
    "Light stages of cascades that were left out, as the prompt alone told that the picture would be refused.",
)
CACHE_LEFT_OUT = counter(
    "pentimento_frontdoor_cache_left_out_total",
    "Requests that did not ask the cache, as their tenant's hits spare less than it takes.",
)
DEGRADED = counter(
    "pentimento_frontdoor_degraded_total", "Pictures that are less than was asked for, by the reason.", ["reason"]
)
SPOOLED_OBJECTS = gauge(
    "pentimento_frontdoor_spooled_objects_count", "Pictures and inputs that wait in the journal for the object store."
)
SPOOLED_BYTES = gauge("pentimento_frontdoor_spooled_bytes", "Bytes that wait in the journal for the object store.")
FREE_BYTES = gauge(
    "pentimento_frontdoor_free_bytes", "Room left on the fullest disk of journal and object store; NaN where unknown."
)
FREE_BYTES.set(nan)
BAD_PICTURES = counter(
    "pentimento_frontdoor_bad_pictures_total",
    "Pictures that could not be read back: missing, corrupt.",
    ["finding"],
)
FORGOTTEN = counter(
    "pentimento_frontdoor_forgotten_pictures_total", "Pictures forgotten early because of their tenant's quota."
)
SWEPT = counter("pentimento_frontdoor_swept_objects_total", "Objects deleted because no request named them.")
WEBHOOKS = counter(
    "pentimento_frontdoor_webhooks_total",
    "Calls of webhooks: delivered, pending (to be called again), failed (given up).",
    ["outcome"],
)
QUOTA_REFUSALS = counter(
    "pentimento_frontdoor_quota_refusals_total",
    "Requests refused because their tenant was over a quota, by the quota.",
    ["quota"],
)
TENANTS = gauge("pentimento_frontdoor_tenants_count", "Tenants in the ledger.")
TENANT_KEYS = gauge("pentimento_frontdoor_tenant_keys_count", "Keys of tenants that are taken.")
SHADOWS = counter(
    "pentimento_frontdoor_shadows_total",
    "Hits that were to be painted again: counted, not_counted, stopped (for a request), gone, failed, dropped.",
    ["outcome"],
)
COMPARED_IMAGES = counter(
    "pentimento_frontdoor_compared_images_total",
    "Light images of deferred requests compared with the heavy model's: counted, not_counted, failed.",
    ["outcome"],
)
SHADOW_SECONDS = counter(
    "pentimento_frontdoor_shadow_seconds_total", "Seconds that workers painted hits again, stopped ones included."
)
DEFERRED = gauge("pentimento_frontdoor_deferred_count", "Requests sent on to the next pool, since the start.", ["pool"])
REFUSED_PLANS = gauge("pentimento_frontdoor_refused_plans_count", "Plans that made no sense, since the start.")
WORKERS = gauge("pentimento_frontdoor_workers_count", "Workers with an open stream of credits.")
REFUSING_WORKERS = gauge(
    "pentimento_frontdoor_refusing_workers_count",
    "Workers that take another start of this frontdoor for the newer one.",
)
