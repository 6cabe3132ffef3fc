"""Define the worker's metrics, in addition to the RPC metrics of every process."""

from pentimento.telemetry import counter, gauge, histogram

STEP_SECONDS = histogram("pentimento_worker_step_seconds", "Time of a denoising step of a batch.")
CONTROL_REPLAYS = counter(
    "pentimento_worker_control_replays_total", "Steps whose residuals were requested again from another replica."
)
PEER_HALVES = counter("pentimento_worker_peer_halves_total", "Halves of steps computed for another worker.")
PAIRED_STEPS = counter("pentimento_worker_paired_steps_total", "Steps with one half from another worker.")
BATCH = histogram(
    "pentimento_worker_batch_count", "Requests per denoising step.", buckets=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
)
QUEUE_WAIT_SECONDS = histogram("pentimento_worker_queue_wait_seconds", "Time an attempt waits for its first step.")
GRANTS_REFUSED = counter(
    "pentimento_worker_grants_refused_total", "Cache grants that stored nothing, by reason.", ["reason"]
)
PREEMPTIONS = counter(
    "pentimento_worker_preemptions_total", "Attempts preempted by a more urgent one, or by another size's turn."
)
OUT_OF_MEMORY = counter("pentimento_worker_out_of_memory_total", "Batches that exceeded the device's memory.")
BUSY_SHARE = gauge("pentimento_worker_busy_share", "Share of the time since the last scrape spent denoising.")
WEIGHT_BYTES = gauge(
    "pentimento_worker_weight_bytes", "Device memory of a network's weights, by component.", ["component"]
)
DEVICE_SECONDS = histogram("pentimento_worker_device_seconds", "Device time of an attempt: its share of batches.")
ENERGY = counter("pentimento_worker_energy_joules_total", "Energy of the device since the start, if it reports it.")
ENERGY_FAILURES = counter("pentimento_worker_energy_failures_total", "Failed readings of the device's energy.")
LOOP_LAG_SECONDS = histogram(
    "pentimento_worker_event_loop_lag_seconds",
    "Delay of due event loop callbacks.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
)
IMAGES = counter("pentimento_worker_images_total", "Attempts by outcome.", ["outcome"])
STAGE_SECONDS = histogram("pentimento_worker_stage_seconds", "Time of a finished attempt by stage.", ["stage"])
SAVED_STEPS = counter("pentimento_worker_saved_steps_total", "Denoising steps saved by cached starts.")
QUEUE = gauge("pentimento_worker_queue_count", "Attempts waiting for the engine.")
RUNNING = gauge("pentimento_worker_running_count", "Attempts being denoised.")
STALE_EPOCHS = counter("pentimento_worker_stale_epochs_total", "Rejected calls of outdated frontdoors.")
LORA_LOAD_SECONDS = histogram(
    "pentimento_worker_lora_load_seconds", "Time to load a LoRA, by the tier that had it.", ["tier"]
)
SKIPPED_DONORS = counter("pentimento_worker_skipped_donors_total", "Unusable cached starts.")
