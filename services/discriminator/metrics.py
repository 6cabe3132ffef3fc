"""Metrics of the discriminator; the RPC metrics of every process are not among them."""

from pentimento.telemetry import counter, histogram

SCORED_IMAGES = counter("pentimento_discriminator_scored_total", "Scored images.")
PASS_SECONDS = histogram("pentimento_discriminator_pass_seconds", "Time of a forward pass.")
