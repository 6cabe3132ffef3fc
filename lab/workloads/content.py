"""The content of a workload's requests, without times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.workloads.arrival import Arrival, Embeddings, Workload
from pentimento.domain.errors import InvalidArgument

SEEDS = 2**31


@dataclass(frozen=True)
class SloClass:
    """Requests that want an answer within `deadline_s` seconds; `share` is a weight among the classes."""

    name: str
    deadline_s: float
    share: float = 1.0


STANDARD = SloClass("standard", 60.0)


@dataclass(frozen=True)
class Content:
    """Prompts are taken in their order (the locality that caches live on) from `first_prompt` on, and from the
    beginning again when they run out; SLO classes and tenants are drawn by their shares.

    `embeddings` are (len(prompts), d). `sources` name the logs that the prompts come from, with their licences.
    """

    prompts: Sequence[str] = field(default=("",), repr=False)
    embeddings: Embeddings | None = field(default=None, compare=False, repr=False)
    slo_classes: tuple[SloClass, ...] = (STANDARD,)
    tenants: Mapping[str, float] = field(default_factory=lambda: {"default": 1.0})
    steps: int = 50
    model: str = ""
    first_prompt: int = 0
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(len(self.prompts) > 0, "prompts", "must be at least one")
        _require(self.steps >= 1, "steps", f"must be at least 1, got {self.steps}")
        _require(self.first_prompt >= 0, "first_prompt", f"must be at least 0, got {self.first_prompt}")
        _check_shares("slo_classes", (slo.share for slo in self.slo_classes))
        _check_shares("tenants", self.tenants.values())
        for slo in self.slo_classes:
            _require(slo.deadline_s > 0, "slo_classes.deadline_s", f"must be above 0 s, got {slo.deadline_s}")
        if self.embeddings is not None:
            rows = len(self.embeddings)
            _require(rows == len(self.prompts), "embeddings", f"must be one a prompt: {len(self.prompts)}, got {rows}")

    @classmethod
    def of_workload(cls, workload: Workload, **fields: Any) -> "Content":
        """Return the content of a workload, in its order, to be sent at other times; `fields` as for a new one."""
        prompts = tuple(arrival.prompt for arrival in workload.arrivals)
        rows = [arrival.embedding_row for arrival in workload.arrivals]
        known = workload.embeddings is not None and min(rows, default=-1) >= 0
        embeddings = workload.embeddings[rows] if known and workload.embeddings is not None else None
        return cls(prompts, embeddings, sources=tuple(workload.provenance.get("sources", ())), **fields)

    def fill(
        self, name: str, times_s: npt.NDArray[np.float64], rng: np.random.Generator, provenance: Mapping[str, Any]
    ) -> Workload:
        """The workload that asks for this at those times (ascending seconds)."""
        count = len(times_s)
        tenants = list(self.tenants)
        tenant = _draw(rng, list(self.tenants.values()), count)
        slo = _draw(rng, [slo.share for slo in self.slo_classes], count)
        seeds = rng.integers(SEEDS, size=count)
        arrivals = tuple(
            self._arrival(index, float(times_s[index]), tenants[tenant[index]], slo[index], int(seeds[index]))
            for index in range(count)
        )
        made_by = {**provenance, "sources": list(self.sources)}
        return Workload(name, arrivals, made_by, self.embeddings)

    def _arrival(self, index: int, at_s: float, tenant: str, slo: int, seed: int) -> Arrival:
        row = (self.first_prompt + index) % len(self.prompts)
        return Arrival(
            at_s=at_s,
            tenant=tenant,
            prompt=self.prompts[row],
            slo_class=self.slo_classes[slo].name,
            deadline_s=self.slo_classes[slo].deadline_s,
            steps=self.steps,
            seed=seed,
            model=self.model,
            embedding_row=-1 if self.embeddings is None else row,
        )


def _draw(rng: np.random.Generator, weights: Sequence[float], count: int) -> list[int]:
    shares = np.asarray(weights, np.float64)
    return [int(choice) for choice in rng.choice(len(shares), size=count, p=shares / shares.sum())]


def _check_shares(name: str, shares: Iterable[float]) -> None:
    known = list(shares)
    fine = all(0 <= share < np.inf for share in known) and sum(known) > 0
    _require(fine, name, "must have shares of at least 0, one of them above 0")


def _require(condition: bool, name: str, limit: str) -> None:
    if not condition:
        raise InvalidArgument.of(name, limit)
