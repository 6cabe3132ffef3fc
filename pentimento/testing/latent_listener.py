"""What a painting of the step engine comes to, for whoever asks the engine without a worker around it."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from pentimento.diffusion.engine import FinishedPainting, SilentListener, StepEngine
from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import PentimentoError


@dataclass
class LatentListener(SilentListener):
    """Keeps the final latent and the number of steps taken, or the error."""

    latent: Tensor | None = None
    error: PentimentoError | None = None
    steps: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        """Count it."""
        self.steps += 1

    def finished(self, painting: FinishedPainting) -> None:
        """Keep the final latent."""
        self.latent = painting.latent
        self._over.set()

    def failed(self, error: PentimentoError) -> None:
        """Keep the error."""
        self.error = error
        self._over.set()

    def wait(self) -> Tensor:
        """Return the final latent (1, channels, height, width) once it is there. Raises as `result` does."""
        self._over.wait()
        return self.result()

    def result(self) -> Tensor:
        """Return the final latent. Raises the error that ended the picture, RuntimeError before its end."""
        if self.error is not None:
            raise self.error
        if self.latent is None:
            raise RuntimeError("the picture is not done")
        return self.latent


def painted_together(engine: StepEngine, requests: Iterable[PaintingRequest]) -> list[Tensor]:
    """Return the final latents of requests that are submitted at once. Raises what the first one that fails ends
    with."""
    answers = []
    for request in requests:
        answers.append(LatentListener())
        engine.submit(request, answers[-1])
    return [answer.wait() for answer in answers]
