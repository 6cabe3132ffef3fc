"""What tensors travelled by."""

from pentimento.telemetry import counter

SENT_BYTES = counter("pentimento_tensor_sent_bytes_total", "Bytes of tensors sent, by transport.", ["transport"])
REGIONS = counter(
    "pentimento_tensor_regions_total",
    "Regions of shared memory that streams were given: made for them, or kept from streams before.",
    ["how"],
)
FALLBACKS = counter(
    "pentimento_tensor_fallbacks_total",
    "Streams or messages whose tensors went in chunks though shared memory was asked for: not_shared, no_space, "
    "not_opened, no_free_slot; no_line: its steps went over gRPC.",
    ["reason"],
)
