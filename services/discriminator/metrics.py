"""Metrics of the discriminator; the RPC metrics of every process are not among them."""

from pentimento.telemetry import counter, histogram

SCORED_IMAGES = counter("pentimento_discriminator_scored_total", "Scored images.")
PASS_SECONDS = histogram("pentimento_discriminator_pass_seconds", "Time of a forward pass.")
CHECKED = counter(
    "pentimento_discriminator_checked_total",
    "Prompts and images checked by the operator's classifiers, by subject and verdict.",
    ("subject", "unsafe"),
)
