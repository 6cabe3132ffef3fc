"""Open a checkpoint in one file, safetensors or GGUF: its networks, published configurations, and the folders of a
directory of its name. Without torch.

open_file(Path("sdxl.safetensors"), rules)  # components missing in the file are read from sdxl/
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import (
    BadCheckpoint,
    Checkpoint,
    ComponentRules,
    allowed_components,
    check_inside,
    component_files,
    pipeline_settings,
    read_index,
)
from pentimento.diffusion.file_layouts import CLIP_MERGES, RecognisedFile, parts_of, recognise
from pentimento.files.model_files import SUFFIXES

_INDEX = "model_index.json"
_CLIP_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")


def open_file(file: Path, rules: Mapping[str, ComponentRules]) -> Checkpoint:
    """Return the checkpoint of a file after checking its header and the folders that complete it.

    Raises BadCheckpoint naming the tensor, the missing part and where to put it.
    """
    if file.suffix not in SUFFIXES:
        raise BadCheckpoint(f"{file}: only {' and '.join(SUFFIXES)} files are opened; a pickle may run code")
    parts = parts_of(file)
    stored = _stored_index(parts, rules)
    found = recognise(file, _same_family(stored.get("_class_name"), rules))
    index = stored or _without_absent(found, parts)
    path = parts / _INDEX if stored else file
    allowed = rules[index["_class_name"]]
    components = allowed_components(path, index, allowed)
    files = {file.name: file} | ({_INDEX: path} if stored else {})
    for name, kind in components.items():
        files |= _files_of(file, parts, found, name, kind.name)
    configs = {
        name: config
        for name, config in found.configs.items()
        if name.partition("/")[0] in components and name not in files
    }
    _check_shapes(file, parts, found, configs)
    return Checkpoint(
        directory=file,
        pipeline_class=index["_class_name"],
        components=components,
        files=files,
        settings=pipeline_settings(path, index, allowed),
        single_file=file,
        held=_not_replaced(found.held, files),
        configs=configs,
        parts=parts,
    )


def with_held(checkpoint: Checkpoint) -> Checkpoint:
    """Return a directory's checkpoint with the networks in its single file. Raises BadCheckpoint if one is missing."""
    if checkpoint.single_file is None:
        return checkpoint
    held = recognise(checkpoint.single_file, [checkpoint.pipeline_class]).held
    for name, kind in checkpoint.components.items():
        if name not in held and _is_network(name, kind.name):
            raise BadCheckpoint(f"{checkpoint.single_file}: holds no tensors of {name}")
    return replace(checkpoint, held={name: prefix for name, prefix in held.items() if name in checkpoint.components})


def _is_network(component: str, class_name: str) -> bool:
    return component != "scheduler" and "Tokenizer" not in class_name


def _stored_index(parts: Path, rules: Mapping[str, ComponentRules]) -> dict[str, Any]:
    if not (parts / _INDEX).is_file():
        return {}
    check_inside(parts, [parts / _INDEX])
    return read_index(parts / _INDEX, rules)


def _same_family(pipeline_class: Any, rules: Mapping[str, ComponentRules]) -> Collection[str]:
    """Return the pipeline classes with the same components."""
    return [name for name, allowed in rules.items() if allowed is rules.get(pipeline_class)]


def _without_absent(found: RecognisedFile, parts: Path) -> dict[str, Any]:
    """Return the published index; T5 is absent unless the file or a folder has it."""
    index = dict(found.layout.index)
    if "text_encoder_3" not in found.held and not (parts / "text_encoder_3").is_dir():
        for name in ("text_encoder_3", "tokenizer_3"):
            index.pop(name, None)
    return index


def _files_of(file: Path, parts: Path, found: RecognisedFile, component: str, class_name: str) -> dict[str, Path]:
    """Return the files of a component by name: those of its folder, or the merges of CLIP's tokenizer. Raises
    BadCheckpoint if neither the file nor the folder has its weights or words."""
    folder = parts / component
    own = component_files(parts, folder) if folder.is_dir() else []
    files = {f"{component}/{path.name}": path for path in own}
    if class_name in _CLIP_TOKENIZERS and not _has_words(own):
        return {**files, f"{component}/merges.txt": CLIP_MERGES}
    if "Tokenizer" in class_name and not _has_words(own):
        raise BadCheckpoint(f"{file}: put the files of its {component} ({class_name}) into {folder}")
    has_weights = any(path.suffix == ".safetensors" for path in own)
    if _is_network(component, class_name) and component not in found.held and not has_weights:
        prefix = found.layout.keys.get(component, "")
        raise BadCheckpoint(f"{file}: holds no tensor {prefix}*: put its {component} ({class_name}) into {folder}")
    return files


def _has_words(files: Iterable[Path]) -> bool:
    return any(path.name in ("vocab.json", "tokenizer.json", "spiece.model") for path in files)


def _check_shapes(file: Path, parts: Path, found: RecognisedFile, configs: Mapping[str, Any]) -> None:
    config = f"{found.layout.denoiser}/config.json"
    if found.unpublished and config in configs:
        message = f"{found.unpublished!r} has another shape than in {found.layout.title}"
        raise BadCheckpoint(f"{file}: {message}: put the model's configuration into {parts / config}")


def _not_replaced(held: Mapping[str, str], files: Mapping[str, Path]) -> dict[str, str]:
    """Return the networks that are read from the file: weights in a component's folder replace its own."""
    replaced = {name.partition("/")[0] for name, path in files.items() if path.suffix == ".safetensors"}
    return {name: prefix for name, prefix in held.items() if name not in replaced}
