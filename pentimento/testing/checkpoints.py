"""Tiny checkpoints with random weights, in the form that diffusers itself writes: quick to make, quick to run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    ControlNetModel,
    DDIMScheduler,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    SD3ControlNetModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

TOKENS = 16
WIDTH = 16
SIDE_PX = 32
T5_TOKENS = 12
_JOINT_WIDTH = 40
_TRANSFORMER: dict[str, Any] = {
    "sample_size": SIDE_PX // 4,
    "patch_size": 2,
    "in_channels": 8,
    "out_channels": 8,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": _JOINT_WIDTH,
    "caption_projection_dim": 16,
    "pooled_projection_dim": WIDTH + 20,
    "pos_embed_max_size": 8,
}


def write_checkpoint(
    directory: Path,
    *,
    vae: str = "tiny",
    half: bool = False,
    sees_mask: bool = False,
    sampler: Any = DDIMScheduler,
    **scheduler: Any,
) -> Path:
    """A StableDiffusionPipeline of 32x32 pixels; `vae` is "tiny" or "kl", the rest goes to its `sampler`. `sees_mask`:
    a StableDiffusionInpaintPipeline, whose network takes a mask and what stays beside the latent."""
    torch.manual_seed(0)
    autoencoder = _tiny_autoencoder() if vae == "tiny" else kl_autoencoder()
    kind = StableDiffusionInpaintPipeline if sees_mask else StableDiffusionPipeline
    pipeline = kind(
        vae=autoencoder,
        text_encoder=CLIPTextModel(text_config()).eval(),
        tokenizer=tokenizer(directory / "tokenizer"),
        unet=_unet(autoencoder.config.latent_channels, sees_mask=sees_mask),
        scheduler=_scheduler(sampler, scheduler),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _save(pipeline, directory, half)


def write_xl_checkpoint(
    directory: Path,
    *,
    half: bool = False,
    vae: dict[str, Any] | None = None,
    zeros: bool = True,
    sees_mask: bool = False,
    sampler: Any = DDIMScheduler,
    **scheduler: Any,
) -> Path:
    """A StableDiffusionXLPipeline of 32x32 pixels; `vae` goes to its AutoencoderKL, `zeros` says what an absent
    negative prompt is, `sees_mask` as for `write_checkpoint`, the rest goes to its `sampler`."""
    torch.manual_seed(1)
    sizes = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
    kind = StableDiffusionXLInpaintPipeline if sees_mask else StableDiffusionXLPipeline
    pipeline = kind(
        vae=kl_autoencoder(scaling_factor=0.13025, **(vae or {})),
        text_encoder=CLIPTextModel(text_config()).eval(),
        text_encoder_2=CLIPTextModelWithProjection(text_config(hidden_size=24, projection_dim=20)).eval(),
        tokenizer=tokenizer(directory / "tokenizer"),
        tokenizer_2=tokenizer(directory / "tokenizer_2"),
        unet=_unet(
            4, sees_mask=sees_mask, cross_attention_dim=40, projection_class_embeddings_input_dim=6 * 8 + 20, **sizes
        ),
        scheduler=_scheduler(sampler, scheduler),
        force_zeros_for_empty_prompt=zeros,
        add_watermarker=False,
    )
    return _save(pipeline, directory, half)


def write_flow_checkpoint(
    directory: Path,
    *,
    t5: bool = False,
    max_sequence_length: int | None = None,
    half: bool = False,
    shift: float = 3.0,
    dual_layers: tuple[int, ...] = (),
    channel_count: int = 8,
    **changes: Any,
) -> Path:
    """A StableDiffusion3Pipeline of 32x32 pixels, whose latents have so many channels; `max_sequence_length` goes to
    its index, as its own key, `changes` to its transformer's configuration."""
    torch.manual_seed(2)
    pipeline = StableDiffusion3Pipeline(
        transformer=_transformer(dual_layers, channel_count, changes),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=kl_autoencoder(scaling_factor=1.5305, shift_factor=0.0609, latent_channels=channel_count),
        text_encoder=CLIPTextModelWithProjection(text_config(projection_dim=WIDTH)).eval(),
        tokenizer=tokenizer(directory / "tokenizer"),
        text_encoder_2=CLIPTextModelWithProjection(text_config(hidden_size=20, projection_dim=20)).eval(),
        tokenizer_2=tokenizer(directory / "tokenizer_2"),
        text_encoder_3=_t5() if t5 else None,
        tokenizer_3=_t5_tokenizer() if t5 else None,
    )
    _save(pipeline, directory, half)
    if max_sequence_length is not None:
        index = directory / "model_index.json"
        index.write_text(json.dumps({**json.loads(index.read_text()), "max_sequence_length": max_sequence_length}))
    return directory


def write_controlnet(directory: Path, *, xl: bool = False, seed: int = 3, **changes: Any) -> Path:
    """Write a ControlNetModel of `write_checkpoint`'s model (of one with vae "kl" or "tiny"), or of
    `write_xl_checkpoint`'s; `changes` go to its configuration. Its layers of zeros are random, so that it controls
    something."""
    torch.manual_seed(seed)
    own: dict[str, Any] = {"cross_attention_dim": WIDTH}
    if xl:
        sizes = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
        own = {"cross_attention_dim": 40, "projection_class_embeddings_input_dim": 6 * 8 + 20, **sizes}
    network = ControlNetModel(
        **{
            "in_channels": 4,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "attention_head_dim": 8,
            "norm_num_groups": 4,
            "conditioning_embedding_out_channels": (8, 16, 16),
            **own,
            **changes,
        }
    )
    layers = [*network.controlnet_down_blocks, network.controlnet_mid_block, network.controlnet_cond_embedding.conv_out]
    return saved_controlnet(network, layers, directory)


def write_flow_controlnet(directory: Path, *, seed: int = 3, **changes: Any) -> Path:
    """Write an SD3ControlNetModel of `write_flow_checkpoint`'s model, of one block; `changes` go to its configuration.
    Its layers of zeros are random, so that it controls something."""
    torch.manual_seed(seed)
    network = SD3ControlNetModel(
        **{**_TRANSFORMER, "num_layers": 1, "dual_attention_layers": (), "extra_conditioning_channels": 0, **changes}
    )
    return saved_controlnet(network, [*network.controlnet_blocks, network.pos_embed_input.proj], directory)


def saved_controlnet(network: Any, zeros: Iterable[torch.nn.Module], directory: Path, std: float = 0.3) -> Path:
    """Write a ControlNet whose layers of zeros are made random, of that deviation, so that it controls something."""
    for layer in zeros:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=std)
    network.eval().save_pretrained(directory)
    return directory


def _scheduler(sampler: Any, settings: dict[str, Any]) -> Any:
    own = {"clip_sample": False} if sampler is DDIMScheduler else {}
    return sampler(**{"steps_offset": 1, **own, **settings})


def _save(pipeline: Any, directory: Path, half: bool) -> Path:
    if half:
        pipeline.to(dtype=torch.float16)
    pipeline.save_pretrained(directory)
    return directory


def text_config(**changes: Any) -> CLIPTextConfig:
    """Return a tiny text encoder's configuration, with changes."""
    return CLIPTextConfig(
        **{
            "vocab_size": 514,
            "hidden_size": WIDTH,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": TOKENS,
            "bos_token_id": 512,
            "eos_token_id": 513,
            "pad_token_id": 513,
            **changes,
        }
    )


def tokenizer(directory: Path) -> CLIPTokenizer:
    """Write a byte-level tokenizer without merges, and return it."""
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer.from_pretrained(directory, model_max_length=TOKENS)


def add_inversion(directory: Path, token: str, vector_count: int) -> Path:
    """Save a textual inversion of so many vectors in a checkpoint's tokenizers and text encoders, as diffusers'
    pipelines do after `load_textual_inversion`; return the directory."""
    pipeline = DiffusionPipeline.from_pretrained(directory, safety_checker=None, local_files_only=True)
    for end in ("", "_2"):
        encoder = getattr(pipeline, f"text_encoder{end}", None)
        if encoder is not None:
            vectors = torch.randn(vector_count, encoder.config.hidden_size, generator=torch.Generator().manual_seed(5))
            words = getattr(pipeline, f"tokenizer{end}")
            pipeline.load_textual_inversion(vectors, token, tokenizer=words, text_encoder=encoder)
    pipeline.save_pretrained(directory)
    return directory


def _t5() -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(vocab_size=64, d_model=_JOINT_WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=4, dropout_rate=0.0)
    ).eval()


def _t5_tokenizer() -> T5Tokenizer:
    """Letters, each a word piece."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -2.0), *((letter, -3.0) for letter in letters)]
    return T5Tokenizer(vocab=pieces, extra_ids=0)


def _unet(channels: int, *, sees_mask: bool = False, **changes: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        **{
            "sample_size": SIDE_PX // 4,
            "in_channels": 2 * channels + 1 if sees_mask else channels,
            "out_channels": channels,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 8,
            "norm_num_groups": 4,
            **changes,
        }
    ).eval()


def _transformer(dual_layers: tuple[int, ...], channel_count: int, changes: dict[str, Any]) -> SD3Transformer2DModel:
    channels = {"in_channels": channel_count, "out_channels": channel_count}
    norm = "rms_norm" if dual_layers else None
    return SD3Transformer2DModel(
        **{**_TRANSFORMER, **channels, "dual_attention_layers": dual_layers, "qk_norm": norm, **changes}
    ).eval()


def _tiny_autoencoder() -> AutoencoderTiny:
    return AutoencoderTiny(
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        num_encoder_blocks=(1, 1, 1),
        num_decoder_blocks=(1, 1, 1),
    ).eval()


def kl_autoencoder(**changes: Any) -> AutoencoderKL:
    """Return a tiny autoencoder, with changes of its configuration."""
    return AutoencoderKL(
        **{
            "latent_channels": 4,
            "block_out_channels": (8, 8, 8),
            "down_block_types": ("DownEncoderBlock2D",) * 3,
            "up_block_types": ("UpDecoderBlock2D",) * 3,
            "norm_num_groups": 4,
            **changes,
        }
    ).eval()
