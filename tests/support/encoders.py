"""Small directories of encoders with random weights: CLIPModel as transformers writes it, BERT sentence encoders as
sentence-transformers lays them out."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, CLIPTokenizer, SiglipConfig, SiglipModel

from tests.support.run_directories import directory_for_the_run
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
    return build_tokenizer(directory_for_the_run("pmt-tokenizer-"), count=300, merges=120)


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


SENTENCE_WORDS = (
    "a",
    "red",
    "blue",
    "circle",
    "square",
    "on",
    "above",
    "the",
    "and",
    "##s",
    "##ed",
    "1",
    "2",
    ".",
    ",",
)
SENTENCE_TOKENS = 20


def write_siglip_encoder(directory: Path, **towers: Any) -> Path:
    """Write a SiglipModel's directory; `towers` go to both towers' configurations."""
    torch.manual_seed(2)
    words = {word: index for index, word in enumerate(("<unk>", "</s>", *SENTENCE_WORDS))}
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, **towers}
    text = {**tower, "vocab_size": len(words), "max_position_embeddings": TOKENS}
    vision = {**tower, "image_size": SIDE_PX, "patch_size": 8}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).eval()
    with torch.no_grad():
        # Biases of an untrained model are 0, which would hide their use.
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(directory)
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", words["</s>"])])
    made.add_special_tokens(["<unk>", "</s>"])
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"pad_token": "</s>"}))
    processing = {"image_processor_type": "SiglipImageProcessor", "size": {"height": SIDE_PX, "width": SIDE_PX}}
    processing |= {"resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (directory / "preprocessor_config.json").write_text(json.dumps(processing))
    return directory


OPEN_CLIP_CONFIG: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": SIDE_PX, "layers": 2, "width": 48, "head_width": 12, "patch_size": 8},
        "text_cfg": {"context_length": TOKENS, "width": 32, "heads": 4, "layers": 2},
    },
    "preprocess_cfg": {"mean": [0.48, 0.45, 0.4], "std": [0.26, 0.25, 0.27], "interpolation": "bicubic"},
}


def write_open_clip_encoder(directory: Path, **model: Any) -> Path:
    """Write a directory of open_clip with random weights and CLIP's tokenizer; `model` goes to `model_cfg`."""
    generator, words = torch.Generator().manual_seed(3), tokenizer()
    config = json.loads(json.dumps(OPEN_CLIP_CONFIG))
    config["model_cfg"] |= model
    config["model_cfg"]["text_cfg"]["vocab_size"] = len(words)
    shapes = {
        "token_embedding.weight": (len(words), 32),
        "positional_embedding": (TOKENS, 32),
        "text_projection": (32, 16),
        "visual.class_embedding": (48,),
        "visual.conv1.weight": (48, 3, 8, 8),
        "visual.positional_embedding": ((SIDE_PX // 8) ** 2 + 1, 48),
        "visual.proj": (48, 16),
        "logit_scale": (),
        **_normed("ln_final", 32),
        **_normed("visual.ln_pre", 48),
        **_normed("visual.ln_post", 48),
        **_blocks("", 32),
        **_blocks("visual.", 48),
    }
    tensors = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, directory / "open_clip_model.safetensors")
    (directory / "open_clip_config.json").write_text(json.dumps(config))
    words.save_pretrained(directory)
    return directory


def _normed(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _blocks(model: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(2):
        block = f"{model}transformer.resblocks.{index}"
        shapes |= _normed(f"{block}.ln_1", width) | _normed(f"{block}.ln_2", width)
        shapes |= {f"{block}.attn.in_proj_weight": (3 * width, width), f"{block}.attn.in_proj_bias": (3 * width,)}
        shapes |= {f"{block}.attn.out_proj.weight": (width, width), f"{block}.attn.out_proj.bias": (width,)}
        shapes |= {f"{block}.mlp.c_fc.weight": (4 * width, width), f"{block}.mlp.c_fc.bias": (4 * width,)}
        shapes |= {f"{block}.mlp.c_proj.weight": (width, 4 * width), f"{block}.mlp.c_proj.bias": (width,)}
    return shapes


def write_sentence_encoder(directory: Path, *, pooling: str = "mean", old_pooling: bool = True, **config: Any) -> Path:
    """Write a sentence-transformers directory; `config` goes to BertConfig, `pooling` is mean or cls: in the switches
    that older versions of the library write, or by name."""
    torch.manual_seed(1)
    words = {word: index for index, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *SENTENCE_WORDS))}
    defaults = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    bert = BertConfig(**{"vocab_size": len(words), "max_position_embeddings": 40, **defaults, **config})
    BertModel(bert, add_pooling_layer=False).eval().save_pretrained(directory)
    _word_pieces(words).save(str(directory / "tokenizer.json"))
    width = bert.hidden_size
    tokens = {mode: mode == pooling for mode in ("cls", "mean")}
    switches = {"pooling_mode_cls_token": tokens["cls"], "pooling_mode_mean_tokens": tokens["mean"]}
    mode = switches if old_pooling else {"pooling_mode": pooling}
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "1_Pooling").mkdir(exist_ok=True)
    documents = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **mode},
        "sentence_bert_config.json": {"max_seq_length": SENTENCE_TOKENS, "do_lower_case": False},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 40},
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document))
    return directory


def _word_pieces(words: dict[str, int]) -> Tokenizer:
    made = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"]))
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return made
