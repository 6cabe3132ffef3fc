"""Find models that are one file, and name them."""

from pathlib import Path

from pentimento.domain.models import derived_name

SUFFIXES = (".safetensors", ".gguf")


def found_model(path: Path) -> Path:
    """Return the path of a model. A name without a suffix may be that of a file, which the directory completes."""
    files = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), path)


def model_name(path: Path) -> str:
    """Return the name that requests use for the model of a directory or file."""
    # A file of a hub's cache is a link to a file without a name.
    name = path.name if path.is_file() else path.resolve().name
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return derived_name(name.removesuffix(suffix))
