"""The name that a model has by its directory, wherever one is served, measured or registered; a single file is none."""

import hashlib
import re
import unicodedata
from pathlib import Path

# With a replica's number behind it, a name is the id of an instance: at most 128 letters, digits and a few signs.
MAX_MODEL_NAME_LENGTH = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+", re.ASCII)


def derived_name(directory: str) -> str:
    """Return the name of a model whose directory is called so: the same where it can be a name, else with a hyphen in
    place of what cannot be in one. A name that would be too long, or empty, ends in a digest of the directory's."""
    plain = unicodedata.normalize("NFKD", directory).encode("ascii", "ignore").decode()
    name = _NOT_IN_NAMES.sub("-", plain).lstrip("._@-").rstrip("-")
    if name and len(name) <= MAX_MODEL_NAME_LENGTH:
        return name
    digest = hashlib.sha256(directory.encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{name[: MAX_MODEL_NAME_LENGTH - 9] or 'model'}-{digest}"


def single_file_advice(file: Path) -> str:
    """Say how a checkpoint in a single file becomes a directory that can be served."""
    convert = f"StableDiffusionPipeline.from_single_file({str(file)!r}).save_pretrained({file.stem!r})"
    return (
        f"must be a directory as diffusers writes it, {file.name} is a single file. diffusers converts it:"
        f' `python -c "from diffusers import StableDiffusionPipeline; {convert}"`'
        " (StableDiffusionXLPipeline for SDXL, StableDiffusion3Pipeline for SD3)"
    )
