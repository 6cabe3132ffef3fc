"""Count the bytes of sent tensors by transport, and the fallbacks."""

from pentimento.telemetry import counter

SENT_BYTES = counter("pentimento_tensor_sent_bytes_total", "Bytes of sent tensors by transport.", ["transport"])
REGIONS = counter(
    "pentimento_tensor_regions_total",
    "Shared memory regions of streams: created, or kept from earlier streams.",
    ["how"],
)
FALLBACKS = counter(
    "pentimento_tensor_fallbacks_total",
    "Streams or messages that used chunks instead of shared memory (not_shared, "
    "no_space, not_opened, no_free_slot), or gRPC for steps (no_line).",
    ["reason"],
)
