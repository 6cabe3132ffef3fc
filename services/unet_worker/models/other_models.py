"""The models that a plan may have a worker hold instead of its first. Free of torch."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.adapters import split_digest
from services.unet_worker.settings import UnetWorkerSettings


@dataclass(frozen=True)
class OtherModel:
    """A checkpoint's directory; where `digest` is not empty, no other weights are held in its place."""

    path: Path
    digest: str = ""

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.path.resolve().name


def other_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    """Return the models that the settings name besides the first. Raises InvalidArgument for a digest that is none."""
    split = (split_digest("other_models", str(given)) for given in settings.other_models)
    return tuple(OtherModel(Path(where), digest) for where, digest in split)
