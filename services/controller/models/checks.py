"""What may be registered. Every check names the field and its limit; nothing is stored before all have passed."""

import hashlib
import re
from pathlib import PurePosixPath

from pentimento.domain.adapters import ADAPTER_NAME_RULE, is_adapter_name, is_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import CascadeVariant, Handover, ModelFile, ModelVariant
from services.controller.validation import MAX_COUNT, MAX_NAME_LENGTH, check_cost, check_text

MAX_FILES = 4096
MAX_COSTS = 64
MAX_STAGES = 8
MAX_POINTS = 1024
MAX_PATH_LENGTH = 512
# Whatever a loader reads; never a pickle, by whatever name.
FILE_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
WEIGHTS_SUFFIX = ".safetensors"
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_variant(variant: ModelVariant) -> None:
    """Raise InvalidArgument for a variant that could not be served."""
    check_name("model.name", variant.name)
    _check_digest("model.digest", variant.digest)
    for field in ("family", "licence"):
        value = getattr(variant, field)
        if not value:
            raise InvalidArgument.of(f"model.{field}", f"must be 1 to {MAX_NAME_LENGTH} printable characters, got none")
        check_text(f"model.{field}", value)
    _check_files(variant)
    if len(variant.costs) > MAX_COSTS:
        raise InvalidArgument.of("model.costs", f"must be at most {MAX_COSTS} devices, got {len(variant.costs)}")
    for index, on in enumerate(variant.costs):
        check_text(f"model.costs[{index}].device", on.device)
        check_cost(f"model.costs[{index}].cost", on.cost)
        if on.cost.model != variant.name:
            raise InvalidArgument.of(f"model.costs[{index}].cost.model", f"must be {variant.name}")
        if not on.cost.run_s:
            raise InvalidArgument.of(f"model.costs[{index}].cost.batches", "must have at least one entry")


def check_cascade(cascade: CascadeVariant) -> None:
    """Raise InvalidArgument for a cascade that no request could go through."""
    count = len(cascade.models)
    if not 2 <= count <= MAX_STAGES:
        raise InvalidArgument.of("cascade.models", f"must be 2 to {MAX_STAGES} models, got {count}")
    for index, name in enumerate(cascade.models):
        check_name(f"cascade.models[{index}]", name)
    if len(set(cascade.models)) < count:
        raise InvalidArgument.of("cascade.models", "must name each model once")
    if len(cascade.handovers) != count - 1:
        limit = f"must be {count - 1}, one for each model but the last"
        raise InvalidArgument.of("cascade.handovers", f"{limit}, got {len(cascade.handovers)}")
    for index, handover in enumerate(cascade.handovers):
        _check_handover(f"cascade.handovers[{index}]", handover)


def check_name(field: str, name: str) -> None:
    """Raise InvalidArgument for a name that is no key of a registry."""
    if not is_adapter_name(name):
        raise InvalidArgument.of(field, f"{ADAPTER_NAME_RULE}, got {name[:80]!r}")


def digest_of(files: tuple[ModelFile, ...]) -> str:
    """Return the digest of a model with these files, as `pentimento.diffusion.checkpoint.digest_files` makes it."""
    lines = "".join(f"{file.path}\0{file.sha256}\n" for file in sorted(files, key=lambda file: file.path))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _check_files(variant: ModelVariant) -> None:
    files = variant.files
    if not 1 <= len(files) <= MAX_FILES:
        raise InvalidArgument.of("model.files", f"must be 1 to {MAX_FILES}, got {len(files)}")
    for index, file in enumerate(files):
        _check_file(f"model.files[{index}]", file)
    if len({file.path for file in files}) < len(files):
        raise InvalidArgument.of("model.files", "must name each path once")
    if not any(file.path.endswith(WEIGHTS_SUFFIX) for file in files):
        raise InvalidArgument.of("model.files", f"must have weights: a {WEIGHTS_SUFFIX} file at least")
    if digest_of(files) != variant.digest:
        raise InvalidArgument.of("model.digest", f"must be that of the files, {digest_of(files)}")


def _check_file(field: str, file: ModelFile) -> None:
    path = PurePosixPath(file.path)
    is_below = file.path == str(path) and not path.is_absolute() and ".." not in path.parts and "\\" not in file.path
    if not (is_below and file.path.isprintable() and 1 <= len(file.path) <= MAX_PATH_LENGTH):
        limit = f"must be a path below the model's directory, of at most {MAX_PATH_LENGTH} characters"
        raise InvalidArgument.of(f"{field}.path", f"{limit}, got {file.path[:80]!r}")
    if path.suffix not in FILE_SUFFIXES:
        limit = f"must end in {', '.join(FILE_SUFFIXES)}: weights are safetensors"
        raise InvalidArgument.of(f"{field}.path", f"{limit}, got {file.path[-80:]!r}")
    if _SHA256.fullmatch(file.sha256) is None:
        raise InvalidArgument.of(f"{field}.sha256", f"must be 64 hex digits, got {file.sha256[:80]!r}")
    if not 0 <= file.size_bytes <= MAX_COUNT:
        raise InvalidArgument.of(f"{field}.size_bytes", f"must be between 0 and {MAX_COUNT}, got {file.size_bytes}")


def _check_handover(field: str, handover: Handover) -> None:
    models = handover.discriminator.split(">")
    if len(models) < 2 or not all(is_adapter_name(model) for model in models):
        limit = "must be the models of the discriminator's cascade with > between them"
        raise InvalidArgument.of(f"{field}.discriminator", f"{limit}, got {handover.discriminator[:80]!r}")
    _check_digest(f"{field}.discriminator_digest", handover.discriminator_digest)
    count = len(handover.thresholds)
    if not 2 <= count <= MAX_POINTS or len(handover.shares) != count:
        limit = f"must be 2 to {MAX_POINTS} points, a share for each threshold"
        raise InvalidArgument.of(f"{field}.shares", f"{limit}, got {count} and {len(handover.shares)}")
    if not 0.0 <= handover.reuse_share < 1.0:
        limit = f"must be at least 0 and below 1, got {handover.reuse_share}"
        raise InvalidArgument.of(f"{field}.reuse_share", limit)
    if handover.reuse_profile is not None:
        raise InvalidArgument.of(f"{field}.reuse_profile", "must be absent: the hand-over profile gives it")
    for name in ("thresholds", "shares"):
        values = getattr(handover, name)
        if not all(0.0 <= value <= 1.0 for value in values) or list(values) != sorted(values):
            raise InvalidArgument.of(f"{field}.{name}", "must ascend within 0 and 1")


def _check_digest(field: str, digest: str) -> None:
    if not is_digest(digest):
        raise InvalidArgument.of(field, f"must be sha256:<64 hex digits>, got {digest[:80]!r}")
