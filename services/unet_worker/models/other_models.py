"""List the models that a plan may have a worker hold instead of its first, and decide which libraries they need. Free
of torch."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.devices.choices import CompileMode
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.adapters import split_digest
from pentimento.files.model_files import found_model, model_name
from services.unet_worker.settings import SkipMissing, UnetWorkerSettings


@dataclass(frozen=True)
class OtherModel:
    """Describe a checkpoint's directory or file; if `digest` is not empty, only weights with that digest are held."""

    path: Path
    digest: str = ""

    @property
    def name(self) -> str:
        return model_name(self.path)


def other_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    """Return the models that the settings name besides the first. If models may be missing, skip the missing ones and
    all repeats. Raises InvalidArgument for an invalid digest."""
    named = named_models(settings)
    if settings.skip_missing is SkipMissing.OFF:
        return named
    found = {one.path.resolve(): one for one in reversed(named) if one.path.exists()}
    found.pop(settings.model.resolve(), None)
    return tuple(reversed(found.values()))


def missing_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    return tuple(one for one in named_models(settings) if not one.path.exists() and one not in other_models(settings))


def named_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    """Return the models that the settings name besides the first, on disk or not. Raises InvalidArgument for an invalid
    digest."""
    split = (split_digest("other_models", str(given)) for given in settings.other_models)
    return tuple(OtherModel(_place(settings.model, Path(where)), digest) for where, digest in split)


def _place(first: Path, given: Path) -> Path:
    """Return the path of a model; a bare name may mean one next to the first model."""
    there = found_model(given)
    return there if there.exists() or given.name != str(given) else found_model(first.parent / given)


def needs_networks_alone(settings: UnetWorkerSettings) -> bool:
    """Return whether every model is a directory of components that no compiler takes: a single file is read by
    diffusers' pipelines, and torch.compile reads diffusers' marks."""
    directories = (settings.model, *(other.path for other in other_models(settings)))
    return settings.compile is not CompileMode.COMPILE and all(map(_has_components, directories))


def _has_components(directory: Path) -> bool:
    try:
        return check_checkpoint(directory).single_file is None
    except BadCheckpoint:
        return False  # reported when the checkpoint is checked
