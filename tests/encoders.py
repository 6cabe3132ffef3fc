"""Small CLIPModel directories with random weights and a vocabulary learnt on the spot, as transformers writes them."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from zoo.drawing.tokenizer import build_tokenizer

TOKENS = 24
SIDE_PX = 24
PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": SIDE_PX},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": SIDE_PX, "width": SIDE_PX},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_convert_rgb": True,
}


@functools.cache
def tokenizer() -> CLIPTokenizer:
    folder = Path(tempfile.mkdtemp(prefix="pmt-tokenizer-"))
    return build_tokenizer(folder, count=300, merges=120)


def write_encoder(directory: Path, *, end_token: int | None = None, shards: bool = False, **towers: Any) -> Path:
    """`towers` go to both towers' configurations; `end_token` is what config.json claims instead of the truth."""
    torch.manual_seed(0)
    words = tokenizer()
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, **towers}
    ends = words.eos_token_id if end_token is None else end_token
    text = {
        **tower,
        "vocab_size": len(words),
        "max_position_embeddings": TOKENS,
        "eos_token_id": ends,
        "bos_token_id": words.bos_token_id,
        "pad_token_id": words.eos_token_id,
    }
    vision = {**tower, "hidden_size": 48, "image_size": SIDE_PX, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    model.save_pretrained(directory, **({"max_shard_size": "40KB"} if shards else {}))
    words.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    return directory
