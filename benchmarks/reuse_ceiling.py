"""What a log's own hits save: the ceiling of what a cache could do for it.

The log is played in order against a cache without bounds that holds every picture as soon as it is finished, by the
gateway's tables and the cheapest start. What is under way when a request comes cannot be found by any cache: with so
many in flight at a time, the newest ones. The unit of cost is seconds a step as they were measured of each model, so
that what a request costs beside its steps is spread over them, and a hit is taken to save its share of that too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pentimento.policies.cache_selection import Thresholds, allowed_steps

Vectors = npt.NDArray[np.float32]

# The gateway's default: what has so many is nobody's donor.
MOST_ANCESTORS = 5


@dataclass(frozen=True)
class PaintingCosts:
    """Steps of a picture from noise, and measured seconds a step: of the heavy model, and of the light one that refines
    images."""

    heavy_steps: int
    light_steps: int
    heavy_step_s: float
    light_step_s: float

    @property
    def scratch_s(self) -> float:
        """Return what a picture of the heavy model from noise costs, in seconds."""
        return self.heavy_steps * self.heavy_step_s


@dataclass(frozen=True)
class ReuseTables:
    """From which similarity on latents are resumed by the heavy model (text to text), and images refined by the light
    one (text to image); an empty table switches that kind off."""

    latents: Thresholds = ()
    images: Thresholds = ()


@dataclass(frozen=True)
class LogStart:
    """Where a request of the log starts: `saved_steps` of the model's own are left out; `donor` is the row that it
    starts from, -1 for noise."""

    light: bool = False
    saved_steps: int = 0
    donor: int = -1

    def cost_s(self, costs: PaintingCosts) -> float:
        """Return what the picture costs from there, in seconds."""
        if self.light:
            return (costs.light_steps - self.saved_steps) * costs.light_step_s
        return (costs.heavy_steps - self.saved_steps) * costs.heavy_step_s


FROM_NOISE = LogStart()


@dataclass
class _Replay:
    """`texts` and `images` are unit vectors (requests, dimensions); the newest `unseen` requests cannot be found."""

    texts: Vectors
    images: Vectors
    tables: ReuseTables
    costs: PaintingCosts
    unseen: int
    starts: list[LogStart] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def add(self) -> None:
        row = len(self.starts)
        options = [FROM_NOISE, *self._latent(row), *self._image(row)]
        start = min(options, key=lambda option: option.cost_s(self.costs))
        self.starts.append(start)
        self.depths.append(0 if start.donor < 0 else self.depths[start.donor] + 1)

    def _latent(self, row: int) -> list[LogStart]:
        """Hits leave no latents."""
        kept = [before for before in range(max(0, row - self.unseen)) if self.starts[before].donor < 0]
        if not kept or not self.tables.latents:
            return []
        donor, similarity = nearest_of(kept, self.texts, self.texts[row])
        steps = allowed_steps(similarity, self.costs.heavy_steps, self.tables.latents)
        return [LogStart(False, steps, donor)] if steps else []

    def _image(self, row: int) -> list[LogStart]:
        kept = [before for before in range(max(0, row - self.unseen)) if self.depths[before] < MOST_ANCESTORS]
        if not kept or not self.tables.images:
            return []
        donor, similarity = nearest_of(kept, self.images, self.texts[row])
        steps = allowed_steps(similarity, self.costs.light_steps, self.tables.images)
        return [LogStart(True, steps, donor)] if steps else []


def nearest_of(rows: Sequence[int], vectors: Vectors, query: Vectors) -> tuple[int, float]:
    """Return the row whose vector is nearest to the query, of equals the first, and their cosine."""
    cosines = vectors[list(rows)] @ query
    best = int(np.argmax(cosines))
    return rows[best], float(cosines[best])


def log_starts(
    texts: Vectors, images: Vectors, tables: ReuseTables, costs: PaintingCosts, unseen: int = 0
) -> list[LogStart]:
    """Return where every request of the log would start. `unseen`: how many of the newest ones are not in the cache
    yet, as where so many are painted at once."""
    replay = _Replay(texts, images, tables, costs, unseen)
    for _ in range(len(texts)):
        replay.add()
    return replay.starts


def throughput_ceiling(starts: Sequence[LogStart], costs: PaintingCosts) -> float:
    """Return the throughput of these starts ÷ that of all of them from noise: N·n·h ÷ the sum of (N − K)·h over latents
    and misses and of (n' − k)·l over refined images."""
    return len(starts) * costs.scratch_s / sum(start.cost_s(costs) for start in starts)
