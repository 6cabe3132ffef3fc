"""The models that a plan may have a worker hold instead of its first. Free of torch."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.adapters import is_digest
from pentimento.domain.errors import InvalidArgument
from services.unet_worker.settings import UnetWorkerSettings

_MARK = "@sha256:"


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
    return tuple(_other_model(str(given)) for given in settings.other_models)


def _other_model(given: str) -> OtherModel:
    where, mark, digits = given.rpartition(_MARK)
    if not mark:
        return OtherModel(Path(given))
    digest = f"sha256:{digits}"
    if not is_digest(digest):
        raise InvalidArgument.of("other_models", f"must have 64 hexadecimal digits behind {_MARK}, got {digits[:80]}")
    return OtherModel(Path(where), digest)
