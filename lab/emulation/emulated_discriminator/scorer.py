"""Score emulated images by the confidence that they carry, in the profiled time."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Collection, Sequence
from itertools import permutations

from lab.emulation.cost_draws import draw
from lab.emulation.fleet_file import label_of
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import MIN_COST_S, MeasuredDeferral, ModelCost
from pentimento.profiles.costs import Cost
from services.discriminator.scoring import Foresights, ImageScores, ImageToScore, reads_no_prompts

# In the form of a real one, so that a cascade of emulated models can be registered with it.
DIGEST = f"sha256:{hashlib.sha256(b'emulated discriminator').hexdigest()}"


class EmulatedScorer:
    """Scores one image after the other, each at a `cost` drawn from `source`. `busy` receives the seconds."""

    def __init__(
        self,
        cost: Cost,
        source: random.Random,
        busy: Callable[[float], None] = lambda seconds: None,
        models: Collection[str] = (),
    ) -> None:
        self._cost = cost
        self._models = models
        self._source = source
        self._busy = busy
        self._loop = asyncio.get_running_loop()
        self._free_at = 0.0

    @property
    def cascades(self) -> tuple[str, ...]:
        """Return none, which accepts every cascade: emulated images carry their own confidence."""
        return ()

    @property
    def costs(self) -> tuple[ModelCost, ...]:
        """Return the mean cost of an image, for every cascade of two of the fleet's models."""
        if self._cost.mean_s < MIN_COST_S:
            return ()
        pairs = (f"{light}>{heavy}" for light, heavy in permutations(self._models, 2))
        return tuple(ModelCost(pair, ((1, self._cost.mean_s),)) for pair in pairs)

    async def open(self) -> None:
        """Nothing is to be loaded."""

    async def close(self) -> None:
        """Close nothing: the server drains the calls that wait."""

    @property
    def prompt_cascades(self) -> tuple[str, ...]:
        """Return none: emulated images carry a confidence, prompts do not."""
        return ()

    @property
    def deferrals(self) -> tuple[MeasuredDeferral, ...]:
        """Return none: the fleet's file has the curve."""
        return ()

    async def foresee(self, cascade: str, prompts: Sequence[Embedding], threshold: float | None = None) -> Foresights:
        """Raise FailedPrecondition NO_PROMPT_HEAD."""
        raise reads_no_prompts(cascade)

    async def score(self, cascade: str, images: Sequence[ImageToScore]) -> ImageScores:
        confidences = [_confidence(index, entry.image) for index, entry in enumerate(images)]
        seconds = sum(draw(self._cost, self._source) for _ in images)
        self._busy(seconds)
        self._free_at = max(self._free_at, self._loop.time()) + seconds
        await asyncio.sleep(self._free_at - self._loop.time())
        return ImageScores(confidences, DIGEST)


def _confidence(index: int, image: bytes) -> float:
    label = label_of(image)
    if label is None:
        message = "must be an image of an emulated device: only these can be scored without a model"
        raise InvalidArgument.of(f"images[{index}].image", message)
    return label.confidence
