"""What the worker counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, gauge, histogram

STEP_SECONDS = histogram("pentimento_worker_step_seconds", "Time of a denoising step on the engine's thread.")
IMAGES = counter("pentimento_worker_images_total", "Attempts by how they ended.", ["outcome"])
STAGE_SECONDS = histogram("pentimento_worker_stage_seconds", "Time of a finished attempt by stage.", ["stage"])
SAVED_STEPS = counter("pentimento_worker_saved_steps_total", "Denoising steps that cached starts saved.")
QUEUE = gauge("pentimento_worker_queue_count", "Attempts waiting for the engine.")
RUNNING = gauge("pentimento_worker_running_count", "Attempts that the engine is denoising.")
SKIPPED_DONORS = counter("pentimento_worker_skipped_donors_total", "Cached starts that could not be used.")
