"""Check registrations of models and their files. Each error names the field and its limit."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.models import OBJECTS_SOURCE, DeviceCost, ModelFile, ModelVariant, digest_of
from pentimento.files.file_sums import block_count
from services.controller.checks import (
    MAX_COUNT,
    MAX_NAME_LENGTH,
    MAX_STEPS,
    check_cost,
    check_digest,
    check_distinct,
    check_each,
    check_model_name,
    check_text,
    check_texts,
    check_within,
)

MAX_PATH_LENGTH = 512
MAX_GUIDANCE_SCALE = 100.0
MAX_FILES = 4096
MAX_COSTS = 64
# Files that a loader reads; never a pickle under any name.
FILE_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
WEIGHTS_SUFFIX = ".safetensors"
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_variant(variant: ModelVariant) -> None:
    """Raise InvalidArgument for a model variant that cannot be served."""
    check_model_name("model.name", variant.name)
    check_digest("model.digest", variant.digest)
    for field in ("family", "licence"):
        if not getattr(variant, field):
            raise InvalidArgument.of(f"model.{field}", f"must be 1 to {MAX_NAME_LENGTH} printable characters, got none")
    check_texts("model", variant, "family", "licence")
    _check_files(variant)
    if variant.source:
        _check_source(variant)
    if variant.signature is not None:
        check_texts("model.signature", variant.signature, "key_id", "value")
        check_within("model.signature.signed_at_ms", variant.signature.signed_at_ms, MAX_COUNT)

    def check_device_cost(field: str, on: DeviceCost) -> None:
        check_text(f"{field}.device", on.device)
        check_cost(f"{field}.cost", on.cost)
        if on.cost.model != variant.name:
            raise InvalidArgument.of(f"{field}.cost.model", f"must be {variant.name}")
        if not on.cost.run_s:
            raise InvalidArgument.of(f"{field}.cost.batches", "must have at least one entry")

    check_each("model.costs", variant.costs, check_device_cost, " devices", MAX_COSTS)


def check_fits_disk(files: Sequence[ModelFile], disk_bytes: int) -> None:
    """Raise FailedPrecondition COMPONENT_TOO_LARGE for files that the local disk of a worker cannot hold at a time."""
    sizes = {file.sha256: file.size_bytes for file in files}
    if sum(sizes.values()) > disk_bytes:
        largest = max(files, key=lambda file: file.size_bytes)
        found = f"{sum(sizes.values())} bytes, {largest.path} {largest.size_bytes} of them"
        message = f"model.files: {found}, exceed the local disk tier of {disk_bytes} bytes (component_disk_mib)"
        raise FailedPrecondition("COMPONENT_TOO_LARGE", message)


def _check_files(variant: ModelVariant) -> None:
    files = variant.files
    check_each_file(files)
    check_distinct("model.files", [file.path for file in files], "name each path once")
    if not any(file.path.endswith(WEIGHTS_SUFFIX) for file in files):
        raise InvalidArgument.of("model.files", f"must have weights: a {WEIGHTS_SUFFIX} file at least")
    if digest_of(files) != variant.digest:
        raise InvalidArgument.of("model.digest", f"must be that of the files, {digest_of(files)}")


def _check_source(variant: ModelVariant) -> None:
    source = variant.source
    is_known = source.startswith((OBJECTS_SOURCE, "s3://")) and source.isprintable() and len(source) <= MAX_PATH_LENGTH
    if not is_known:
        limit = f"must be empty, {OBJECTS_SOURCE} or s3://bucket/path, of at most {MAX_PATH_LENGTH} characters"
        raise InvalidArgument.of("model.source", f"{limit}, got {source[:80]!r}")
    check_within("model.default_steps", variant.default_steps, MAX_STEPS, 1)
    check_within("model.default_guidance_scale", variant.default_guidance_scale, MAX_GUIDANCE_SCALE)
    for index, file in enumerate(variant.files):
        if file.path.endswith(WEIGHTS_SUFFIX) and not file.is_stored:
            raise InvalidArgument.of(f"model.files[{index}].blocks", "must have a hash for each block of 8 MiB")


def check_each_file(files: Sequence[ModelFile]) -> None:
    """Raise InvalidArgument for too many files, or one that no loader reads."""
    if not 1 <= len(files) <= MAX_FILES:
        raise InvalidArgument.of("model.files", f"must be 1 to {MAX_FILES}, got {len(files)}")
    check_each("model.files", files, check_file, most=MAX_FILES)


def check_file(field: str, file: ModelFile) -> None:
    """Raise InvalidArgument for a file that no loader reads."""
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
    check_within(f"{field}.size_bytes", file.size_bytes, MAX_COUNT)
    if file.blocks and (
        len(file.blocks) != block_count(file.size_bytes) or not all(map(_SHA256.fullmatch, file.blocks))
    ):
        limit = f"must be {block_count(file.size_bytes)} times 64 hex digits, one for each block of 8 MiB"
        raise InvalidArgument.of(f"{field}.blocks", f"{limit}, got {len(file.blocks)}")
