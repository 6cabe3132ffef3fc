"""The production mix: base models, LoRAs and ControlNets as popular, and as clustered in time, as they really are.

Popularity follows Zipf–Mandelbrot weights (rank + q)^-s with q and s found from the two shares the papers print.
Clustering: a user comes back within ten requests, mostly with the same model and adapters.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.workloads.arrival import Workload
from lab.workloads.content import Content
from lab.workloads.readers import ProductionRequest
from lab.workloads.times import Times, compressed
from pentimento.domain.errors import InvalidArgument

RECENT = 10
LARGEST_SHIFT = 1e3
LARGEST_EXPONENT = 8.0
# The drawn shares are exact to 1e-9 by then for the mixes here.
FITTING_ROUNDS = 200


@dataclass(frozen=True)
class Popularity:
    """`count` things; the first has `top_share` of the requests, the first `head` together `head_share`."""

    count: int
    top_share: float
    head: int
    head_share: float

    def weights(self) -> npt.NDArray[np.float64]:
        """Shares by rank, of sum 1. InvalidArgument where no Zipf–Mandelbrot law has those two shares."""
        low, high = -0.99, LARGEST_SHIFT
        for _ in range(80):
            shift = (low + high) / 2
            # The larger the shift, the flatter the head: more of its share is with the others.
            fits_below = self._weights(shift)[: self.head].sum() >= self.head_share
            low, high = (low, shift) if fits_below else (shift, high)
        found = self._weights((low + high) / 2)
        off = max(abs(found[0] - self.top_share), abs(found[: self.head].sum() - self.head_share))
        if off > 1e-3:
            raise InvalidArgument.of("popularity", f"no Zipf law gives {self}")
        return found

    def _weights(self, shift: float) -> npt.NDArray[np.float64]:
        """With the exponent at which the first has its share."""
        ranks = np.arange(1, self.count + 1) + shift
        low, high = 0.0, LARGEST_EXPONENT * (2.0 + max(shift, 0.0))
        for _ in range(80):
            exponent = (low + high) / 2
            weights = (ranks / ranks[0]) ** -exponent
            low, high = (low, exponent) if 1.0 / weights.sum() >= self.top_share else (exponent, high)
        weights = (ranks / ranks[0]) ** -((low + high) / 2)
        return np.asarray(weights / weights.sum(), np.float64)


@dataclass(frozen=True)
class ProductionMix:
    """Describe requests by their number of LoRAs (0, 1, 2 …) and ControlNets, and by the popularity of each kind.

    Popularity is a share of requests' models, of drawn LoRAs, and of all calls of ControlNets. `returning` is the
    probability that a request's user is one of the last ten requests', `same_model` and `same_loras` that such a user
    keeps theirs. `lora_life` is the drift: the mean number of requests after which a LoRA exchanges its popularity with
    another one.
    """

    models: Popularity
    loras: Popularity
    lora_counts: tuple[float, ...]
    controlnets: Popularity
    controlnet_counts: tuple[float, ...]
    users: int = 2657
    returning: float = 0.66
    same_model: float = 0.715
    same_loras: float = 0.93
    lora_life: float = inf
    source: str = ""


# MLoRA, section 3: 97 base models, the first 28.8 % and the first five 70.4 %; of 705 LoRAs 23.5 % take 80 % of the
# uses; 78.8 % of requests without one, the others 1 to 6. From gentd26 are the first LoRA's 5 %, the spread over 1 to 6
# and the clustering in time. Neither says how many requests carry one of the 24 ControlNets: none do.
MLORA = ProductionMix(
    models=Popularity(97, 0.288, 5, 0.704),
    loras=Popularity(705, 0.05, 166, 0.80),
    lora_counts=(0.788, 0.195, 0.010, 0.004, 0.001, 0.001, 0.001),
    controlnets=Popularity(24, 0.50, 5, 0.95),
    controlnet_counts=(1.0,),
    source="MLoRA section 3; derived figures of gentd26 (Lin et al., SoCC 2025)",
)
# The same with ControlNets and drift, for logs of about 16,000 requests: 50 combinations have 73.2 % of the requests,
# 89.3 % of the combinations fewer than five uses (MLoRA, sections 5.3 and 6.3), and the most used LoRAs of a day lose
# 60 to 70 % of their uses within three days. The share of requests with a ControlNet, the numbers of LoRAs, the habits
# and the drift are fitted to these figures and to the LoRAs' shares above, since the paper prints no figures for these.
MLORA_DRIFTING = replace(
    MLORA,
    loras=Popularity(705, 0.05, 166, 0.90),
    lora_counts=(0.788, 0.10, 0.05, 0.03, 0.017, 0.010, 0.005),
    controlnet_counts=(0.87, 0.13),
    same_loras=0.82,
    lora_life=3_400.0,
)
# Katz, Table 1 and section 3.1: two services that nearly always use adapters. Five of 47 ControlNets take 98 % of the
# calls, eight of 94 take 95 %; the first one's share is not printed. In A no request uses a ControlNet twice, so the
# first has at most 59 % of the calls, and no Zipf law has less than 54.3 % with 98 % for five: the middle is taken.
KATZ_A = replace(
    MLORA,
    lora_counts=(0.002, 0.088, 0.91),
    controlnets=Popularity(47, 0.567, 5, 0.98),
    controlnet_counts=(0.0, 0.305, 0.695),
    source="Katz Table 1, service A",
)
KATZ_B = replace(
    MLORA,
    lora_counts=(0.072, 0.736, 0.192),
    controlnets=Popularity(94, 0.40, 8, 0.95),
    controlnet_counts=(0.019, 0.251, 0.699, 0.031),
    source="Katz Table 1, service B",
)


@dataclass(frozen=True)
class Choice:
    """The models and adapters of one request, by name."""

    user: str
    model: str
    loras: tuple[str, ...]
    controlnets: tuple[str, ...]


def production_mix(
    times_s: Times,
    rng: np.random.Generator,
    content: Content | None = None,
    mix: ProductionMix = MLORA,
    tenants_are_users: bool = False,
) -> Workload:
    """The production mix (MLoRA, section 3; Katz, section 3) at those times: models are named base-000 …, adapters
    lora-000 … and controlnet-00 …

    A composite: adapters from one log, texts from another, users and their habits from a third.
    """
    made_by: Mapping[str, Any] = {"builder": "production_mix", "mix": asdict(mix), "composite": True}
    plain = (content or Content()).fill("production", times_s, rng, made_by)
    choices = choose(mix, len(times_s), rng)
    arrivals = tuple(
        replace(
            arrival,
            tenant=choice.user if tenants_are_users else arrival.tenant,
            model=choice.model,
            loras=choice.loras,
            controlnets=choice.controlnets,
        )
        for arrival, choice in zip(plain.arrivals, choices, strict=True)
    )
    return replace(plain, arrivals=arrivals)


def from_production_log(
    requests: Sequence[ProductionRequest],
    rng: np.random.Generator,
    content: Content | None = None,
    *,
    compress: float = 100.0,
    source: str = "gentd26",
) -> Workload:
    """A recorded log of production played `compress` times as fast: its times, users (as tenants), checkpoints, LoRAs
    and steps; the texts are the content's. A composite."""
    times = compressed([request.at_s for request in requests], compress)
    made_by = {"builder": "from_production_log", "times": source, "compress": compress, "composite": True}
    plain = (content or Content()).fill("production-log", times, rng, made_by)
    arrivals = tuple(
        replace(
            arrival,
            tenant=request.group,
            model=request.checkpoint,
            loras=tuple(name for name, _ in request.loras),
            steps=request.steps or arrival.steps,
        )
        for arrival, request in zip(plain.arrivals, requests, strict=True)
    )
    return replace(plain, arrivals=arrivals)


def choose(mix: ProductionMix, count: int, rng: np.random.Generator) -> list[Choice]:
    """One choice a request, in order."""
    drawer = _Drawer(mix, rng)
    return [drawer.next() for _ in range(count)]


@dataclass
class _Drawer:
    mix: ProductionMix
    rng: np.random.Generator
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=RECENT))
    habits: dict[str, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mix = self.mix
        kinds = {"base": mix.models.weights(), "lora": mix.loras.weights()}
        kinds["controlnet"] = drawing_weights(mix.controlnets.weights(), mix.controlnet_counts)
        self.names = {kind: _Cumulative(weights) for kind, weights in kinds.items()}
        self.lora_counts, self.controlnet_counts = _Cumulative(mix.lora_counts), _Cumulative(mix.controlnet_counts)
        # The LoRA at each rank of popularity.
        self.loras = list(range(mix.loras.count))

    def next(self) -> Choice:
        self._drift()
        user = self._user()
        before = self.habits.get(user)
        keeps_model = before is not None and self.rng.random() < self.mix.same_model
        keeps_loras = before is not None and self.rng.random() < self.mix.same_loras
        choice = Choice(
            user,
            before.model if before and keeps_model else self._some("base", 1)[0],
            before.loras if before and keeps_loras else self._some("lora", self.lora_counts.draw(self.rng)),
            self._some("controlnet", self.controlnet_counts.draw(self.rng)),
        )
        self.recent.append(user)
        self.habits[user] = choice
        return choice

    def _drift(self) -> None:
        """Exchange two LoRAs' popularity, as often as `lora_life` says: an exchange changes both."""
        if self.mix.lora_life == inf:
            return
        for _ in range(self.rng.poisson(len(self.loras) / 2 / self.mix.lora_life)):
            one, other = self.rng.integers(len(self.loras), size=2)
            self.loras[one], self.loras[other] = self.loras[other], self.loras[one]

    def _user(self) -> str:
        if self.recent and self.rng.random() < self.mix.returning:
            return self.recent[int(self.rng.integers(len(self.recent)))]
        return f"user-{int(self.rng.integers(self.mix.users)):04d}"

    def _some(self, kind: str, count: int) -> tuple[str, ...]:
        """Draw `count` at once, again until all differ: the probability of a set is the product of its weights."""
        names = self.names[kind]
        chosen: list[int] = []
        while len(set(chosen)) < min(count, len(names)):
            chosen = [names.draw(self.rng) for _ in range(count)]
        if kind == "lora":
            chosen = [self.loras[rank] for rank in chosen]
        return tuple(f"{kind}-{index:03d}" for index in dict.fromkeys(chosen))


def drawing_weights(shares: npt.NDArray[np.float64], counts: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return weights such that different things drawn by them for each request have `shares` of all calls.

    `counts` are the shares of requests by their number of things. Since a request has each thing once, popular ones are
    called less often than their weight says. Iterative proportional fitting; shares that no weights give are missed.
    """
    weights = shares
    for _ in range(FITTING_ROUNDS if any(counts[2:]) else 0):
        weights = weights * shares / call_shares(weights, counts)
        weights = weights / weights.sum()
    return weights


def call_shares(weights: npt.NDArray[np.float64], counts: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return each thing's share of all calls where requests draw different things by these weights."""
    calls = sum(share * _included(weights, count) for count, share in enumerate(counts) if count and share)
    return np.asarray(calls / np.sum(calls), np.float64)


def _included(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Return the probability of each thing to be among `count` different ones, by elementary symmetric polynomials."""
    sums = np.zeros(count + 1)
    sums[0] = 1.0
    for weight in weights:
        sums[1:] += weight * sums[:-1]
    without = np.ones_like(weights)
    for size in range(1, count):
        without = sums[size] - weights * without
    return np.asarray(weights * without / sums[count], np.float64)


class _Cumulative:
    """Draws an index by its weight."""

    def __init__(self, weights: Sequence[float] | npt.NDArray[np.float64]) -> None:
        self._sums = [float(total) for total in np.cumsum(weights)]

    def __len__(self) -> int:
        return len(self._sums)

    def draw(self, rng: np.random.Generator) -> int:
        return min(bisect_right(self._sums, rng.random() * self._sums[-1]), len(self._sums) - 1)
