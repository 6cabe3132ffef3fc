"""What an operator decides about a dataplane."""

from dataclasses import dataclass

from pentimento.policies.thinning import ThinningMode


@dataclass(frozen=True)
class DataplaneSettings:
    """Settings of the dataplane; times in seconds. `queue_limit`: requests of a pool that wait for a worker, shared out
    among the tenants that have any there.

    A request that took `suspect_losses` workers down with it waits up to `suspect_wait_s` for a second worker to be
    there, so that it cannot empty the pool. `orphan_wait_s`: how long a recovered attempt's worker may take to show up.

    `drop_late`: requests predicted to miss their deadline are rejected, or dropped when it is their turn (DiffServe,
    section 4.1), instead of being tried; predictions are later by `prediction_margin` times what measured service times
    scatter.

    Of a cascade: `confidence_threshold` where the plan has none, None for the discriminator's own; `accept_unscored`,
    rather than going on, when the discriminator does not answer; `fall_back` to an earlier stage's image,
    `fall_back_margin_s` before the deadline, when a later stage cannot make it; `skip_light_below`: the probability, by
    the prompt only, below which the first stage is skipped, 0 for never, None for the plan's or else the
    discriminator's verdict.

    `adapter_load_s`: what it counts against a worker that it would have to load a LoRA first, for each.

    `pair_tight_share`: a request is painted by two workers while less than so many times its service time is left to
    its deadline; None for whatever deadline.

    `thinning`: whether steps that a request may leave out are, to meet its deadline or also under load.
    """

    queue_limit: int = 256
    max_reruns: int = 2
    suspect_losses: int = 2
    suspect_wait_s: float = 10.0
    orphan_wait_s: float = 3.0
    forget_worker_s: float = 30.0
    min_retry_after_ms: int = 100
    max_retry_after_ms: int = 600_000
    drop_late: bool = True
    prediction_margin: float = 1.0
    confidence_threshold: float | None = 0.0
    accept_unscored: bool = True
    fall_back: bool = True
    fall_back_margin_s: float = 0.1
    skip_light_below: float | None = None
    adapter_load_s: float = 0.5
    pair_tight_share: float | None = None
    thinning: ThinningMode = ThinningMode.OFF
