"""A request before it is sent, and a schedule of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: sent `at_s` seconds after the run begins, worth an answer for `deadline_s` seconds from then.

    `model` empty lets the deployment choose; `steps` 0 leaves each model its own. `embedding_row` is the prompt's row
    in the workload's `embeddings`, -1 for none. `repr` holds no prompt.
    """

    at_s: float
    tenant: str
    prompt: str = field(repr=False)
    slo_class: str
    deadline_s: float
    steps: int
    seed: int
    model: str = ""
    loras: tuple[str, ...] = ()
    controlnets: tuple[str, ...] = ()
    embedding_row: int = -1


@dataclass(frozen=True)
class Workload:
    """Arrivals in the order of their times, and where they come from.

    `provenance` (JSON values) says builder, arguments, sources with their licences, and `composite: true` when texts
    and times come from different logs. `embeddings` are (n, d) unit vectors of the prompts; equality leaves them out.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    provenance: Mapping[str, Any]
    embeddings: Embeddings | None = field(default=None, compare=False, repr=False)

    @property
    def duration_s(self) -> float:
        """Until the last arrival; 0 without any."""
        return self.arrivals[-1].at_s if self.arrivals else 0.0

    @property
    def mean_rate(self) -> float:
        """Arrivals a second over the duration; 0 where there is none."""
        return len(self.arrivals) / self.duration_s if self.duration_s > 0 else 0.0

    def first(self, count: int) -> "Workload":
        """Its first `count` arrivals; the embeddings stay whole."""
        return replace(self, arrivals=self.arrivals[:count], provenance={**self.provenance, "first": count})

    def named(self, name: str) -> "Workload":
        return replace(self, name=name)
