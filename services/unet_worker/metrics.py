"""What the worker counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, gauge, histogram

STEP_SECONDS = histogram("pentimento_worker_step_seconds", "Time of a denoising step of a whole batch.")
CONTROL_REPLAYS = counter(
    "pentimento_worker_control_replays_total", "Steps whose residuals were asked for again, of another replica."
)
PEER_HALVES = counter("pentimento_worker_peer_halves_total", "Steps whose one half was computed for another worker.")
PAIRED_STEPS = counter(
    "pentimento_worker_paired_steps_total", "Steps that were taken with a half which another worker computed."
)
BATCH = histogram(
    "pentimento_worker_batch_count",
    "Requests that share a denoising step.",
    buckets=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
)
QUEUE_WAIT_SECONDS = histogram("pentimento_worker_queue_wait_seconds", "Wait of an attempt for its first step.")
GRANTS_REFUSED = counter(
    "pentimento_worker_grants_refused_total", "Cache grants that nothing was stored under, by why.", ["reason"]
)
PREEMPTIONS = counter(
    "pentimento_worker_preemptions_total",
    "Times that an attempt gave way to a more urgent one, or to the turn of another size.",
)
OUT_OF_MEMORY = counter("pentimento_worker_out_of_memory_total", "Batches that the device had no memory for.")
BUSY_SHARE = gauge("pentimento_worker_busy_share", "Share of the time since the last scrape that the device denoised.")
DEVICE_SECONDS = histogram("pentimento_worker_device_seconds", "Device time of an attempt: its share of batches.")
ENERGY = counter("pentimento_worker_energy_joules_total", "Energy of the device since the start, where it tells.")
ENERGY_FAILURES = counter(
    "pentimento_worker_energy_failures_total", "Readings of the device's energy that failed; it is asked again."
)
LOOP_LAG_SECONDS = histogram(
    "pentimento_worker_event_loop_lag_seconds",
    "How late the event loop runs what is due.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
)
IMAGES = counter("pentimento_worker_images_total", "Attempts by how they ended.", ["outcome"])
STAGE_SECONDS = histogram("pentimento_worker_stage_seconds", "Time of a finished attempt by stage.", ["stage"])
SAVED_STEPS = counter("pentimento_worker_saved_steps_total", "Denoising steps that cached starts saved.")
QUEUE = gauge("pentimento_worker_queue_count", "Attempts waiting for the engine.")
RUNNING = gauge("pentimento_worker_running_count", "Attempts that the engine is denoising.")
STALE_EPOCHS = counter(
    "pentimento_worker_stale_epochs_total", "Calls of frontdoors that are not the newest of their id, all refused."
)
SKIPPED_DONORS = counter("pentimento_worker_skipped_donors_total", "Cached starts that could not be used.")
