"""Write the dual encoder as a CLIPModel directory that stock transformers loads.

Two shards: the text tower, the pipelines' file, and the rest.
"""

from __future__ import annotations

from pathlib import Path

from zoo.drawing.scenes import IMAGE_SIZE
from zoo.drawing.tokenizer import load_tokenizer
from zoo.export.directories import save_shards, save_tokenizer, save_transformers_config, text_tensors, write_json
from zoo.train.image_tower import load_dual_encoder

HALF = [0.5, 0.5, 0.5]
PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_resize": True,
    "resample": 3,
    "size": {"shortest_edge": IMAGE_SIZE},
    "do_center_crop": True,
    "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "image_mean": HALF,
    "image_std": HALF,
}


def export_dual_encoder(work: Path, folder: Path) -> None:
    """Write both towers from their last checkpoints in the work folder, without the training heads."""
    clip = load_dual_encoder(work).clip
    save_transformers_config(clip.config, "CLIPModel", folder)
    text = text_tensors(clip)
    rest = {name: tensor for name, tensor in clip.state_dict().items() if name not in text}
    save_shards([text, {name: tensor for name, tensor in rest.items() if "position_ids" not in name}], folder)
    save_tokenizer(load_tokenizer(work / "tokenizer"), folder)
    write_json(folder / "preprocessor_config.json", PREPROCESSING)
