"""What the discriminator counts, beside the RPC metrics that every process has."""

from pentimento.telemetry import counter, histogram

SCORED_PICTURES = counter("pentimento_discriminator_scored_total", "Scored images.")
PASS_SECONDS = histogram("pentimento_discriminator_pass_seconds", "Time of a forward pass.")
