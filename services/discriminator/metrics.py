"""What the discriminator counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, histogram

SCORED_PICTURES = counter("pentimento_discriminator_scored_total", "Pictures scored.")
PASS_SECONDS = histogram("pentimento_discriminator_pass_seconds", "Seconds of a pass over some pictures together.")
