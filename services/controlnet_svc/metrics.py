"""Define the ControlNet service's metrics, in addition to the RPC metrics of every process."""

from pentimento.telemetry import counter, gauge, histogram

OPEN_STREAMS = gauge("pentimento_controlnet_open_streams_count", "Open streams.")
STEPS = counter("pentimento_controlnet_steps_total", "Steps with computed residuals.")
STEP_SECONDS = histogram("pentimento_controlnet_step_seconds", "Time of a forward pass.")
QUEUE_SECONDS = histogram("pentimento_controlnet_queue_seconds", "Time a step waits for its forward pass.")
BATCH = histogram("pentimento_controlnet_batch_count", "Steps per forward pass.", buckets=(1, 2, 4, 8, 16, 32, 64))
CONDITIONS = counter(
    "pentimento_controlnet_conditions_total", "Conditioning images of streams: embedded, or reused.", ["from"]
)
LOADS = counter("pentimento_controlnet_loads_total", "ControlNets loaded to the device.")
LOAD_SECONDS = histogram("pentimento_controlnet_load_seconds", "Time of a load.")
EVICTIONS = counter("pentimento_controlnet_evictions_total", "ControlNets evicted from the device.")
RESIDENT_BYTES = gauge("pentimento_controlnet_resident_bytes", "Bytes of the ControlNets on the device.")
