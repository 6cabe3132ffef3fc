"""Names of models, which come from their directories. A single file is no model, and gets advice instead."""

import hashlib
import re
import unicodedata
from pathlib import Path

# With a replica's number behind it, a name is the id of an instance: at most 128 letters, digits and a few signs.
MAX_MODEL_NAME_LENGTH = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+", re.ASCII)


def derived_name(directory: str) -> str:
    """Return the name of the model in a directory of that name: the same where it is valid, else with hyphens for the
    characters that no name has. A name that would be too long or empty ends in a digest."""
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
