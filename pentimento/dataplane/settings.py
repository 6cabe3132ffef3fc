"""Define the settings of a dataplane that an operator chooses."""

from dataclasses import dataclass

from pentimento.policies.thinning import ThinningMode


@dataclass(frozen=True)
class DataplaneSettings:
    """Hold the settings of the dataplane; times in seconds. `queue_limit`: requests of a pool that wait for a worker,
    shared among its tenants with waiting requests.

    A request that crashed two workers waits up to `suspect_wait_s` for a second worker, so that it cannot empty the
    pool. `orphan_wait_s`: time for the worker of a recovered attempt to return.

    `drop_late`: requests predicted to miss their deadline are rejected, or dropped at their turn (DiffServe, section
    4.1), instead of run; predictions are later by `prediction_margin` times the spread of measured service times.

    For a cascade: `confidence_threshold` if the plan has none, None for the discriminator's own; `accept_unscored`
    accepts an image instead of deferring it if the discriminator does not answer; `fall_back` to an earlier stage's
    image, shortly before the deadline, if a later stage cannot make it; `skip_light_below`: the
    probability, by the prompt only, below which the first stage is skipped, 0 for never, None for the plan's or else
    the discriminator's verdict.

    `pair_tight_share`: two workers run a request while the time to its deadline is less than this multiple of its
    service time; None for any deadline.

    `thinning`: whether requests skip steps that they may skip: never, to meet their deadline, or also under load.
    """

    queue_limit: int = 256
    max_reruns: int = 2
    suspect_wait_s: float = 10.0
    orphan_wait_s: float = 3.0
    drop_late: bool = True
    prediction_margin: float = 1.0
    confidence_threshold: float | None = 0.0
    accept_unscored: bool = True
    fall_back: bool = True
    skip_light_below: float | None = None
    pair_tight_share: float | None = None
    thinning: ThinningMode = ThinningMode.OFF
