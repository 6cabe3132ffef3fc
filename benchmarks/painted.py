"""What a painting of the step engine comes to, for benchmarks that ask the engine without a worker around it."""

import threading
from dataclasses import dataclass, field

from torch import Tensor

from pentimento.diffusion.engine import FinishedPainting
from pentimento.domain.errors import PentimentoError


@dataclass
class LatentListener:
    """A listener that keeps the final latent and the number of steps taken, or the error."""

    latent: Tensor | None = None
    error: PentimentoError | None = None
    steps: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def started(self, first_step: int, step_count: int) -> None:
        pass

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        self.steps += 1

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        pass

    def finished(self, painting: FinishedPainting) -> None:
        self.latent = painting.latent
        self._over.set()

    def failed(self, error: PentimentoError) -> None:
        self.error = error
        self._over.set()

    def wait(self) -> Tensor:
        """The final latent, once it is there; what it failed with as the cause of a RuntimeError."""
        self._over.wait()
        return self.result()

    def result(self) -> Tensor:
        if self.latent is None:
            raise RuntimeError("the picture failed") from self.error
        return self.latent
