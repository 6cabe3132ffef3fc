"""Serve the IP-Adapters of a directory: load each that fits the model."""

import logging
from collections.abc import Iterator
from pathlib import Path

from pentimento.diffusion.checkpoint import check_inside
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.image_prompts import (
    ENCODER_FOLDER,
    IpAdapter,
    PromptImageEncoder,
    check_ip_adapter,
    load_image_encoder,
)
from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter, adapter_name_for
from pentimento.domain.errors import PentimentoError
from services.unet_worker.adapters.image_prompts import IpAdapters
from services.unet_worker.adapters.lora_directory import MAX_MESSAGE_LENGTH, MAX_REJECTED

logger = logging.getLogger(__name__)


def open_ip_adapters(directory: Path, model: DiffusionModel) -> IpAdapters:
    """Load the IP-Adapters in a directory and its folders, each with the image encoder next to it. One that does
    not fit the model is logged and rejected."""
    held: dict[str, IpAdapter] = {}
    known, rejected = [], []
    digests: dict[Path, str] = {}
    encoders: dict[Path, PromptImageEncoder] = {}
    for name, path in _named(directory):
        try:
            check_inside(directory, [path])
            file = check_ip_adapter(path, model.cross_attentions)
            if file.encoder not in encoders:
                encoders[file.encoder] = load_image_encoder(file.encoder, model.device, model.dtype)
                digests[file.encoder] = file.encoder_digest()
            digest = file.digest(digests[file.encoder])
            held[digest] = IpAdapter(path, encoders[file.encoder], model.cross_attentions, model.device, model.dtype)
        except PentimentoError as error:
            logger.warning("the IP-Adapter %s is rejected: %s", name, error)
            said = error.message[:MAX_MESSAGE_LENGTH]
            rejected.append(RejectedAdapter(name, AdapterKind.IP_ADAPTER, error.reason, said))
        else:
            known.append(Adapter(name, AdapterKind.IP_ADAPTER, digest, model.info.family, model.info.model_digest))
    logger.info("%d IP-Adapters for the model", len(known))
    return IpAdapters(held, tuple(known), tuple(rejected[:MAX_REJECTED]))


def _named(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files with their registry names, each name once."""
    folders = (directory, *(path for path in sorted(directory.iterdir()) if path.is_dir()))
    files = [
        path for folder in folders if folder.name != ENCODER_FOLDER for path in sorted(folder.glob("*.safetensors"))
    ]
    named: dict[str, Path] = {}
    for path in files:
        name = adapter_name_for(path.stem)
        if named.setdefault(name, path) is not path:
            logger.warning("%s is not served: %s has its name", path, named[name])
    yield from named.items()
