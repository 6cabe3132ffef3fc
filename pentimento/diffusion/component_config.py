"""Filter component configurations for the libraries: only keys that the class is known to take, with bounded values.

Stored configurations hold more: notes of the library that wrote them (`_diffusers_version`, `transformers_version`,
`architectures`, `torch_dtype`), and keys that would make a loader fetch or run code (`attn_implementation`, `auto_map`,
`quantization_config`). None changes the generated images, and none is passed on.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint

CLIP_TEXT_KEYS = frozenset(
    {"model_type", "vocab_size", "hidden_size", "intermediate_size", "projection_dim", "num_hidden_layers",
     "num_attention_heads", "max_position_embeddings", "hidden_act", "layer_norm_eps", "attention_dropout", "dropout",
     "initializer_factor", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "use_attention_mask"}
)  # fmt: skip
CLIP_VISION_KEYS = frozenset(
    {"model_type", "hidden_size", "intermediate_size", "projection_dim", "num_hidden_layers", "num_attention_heads",
     "num_channels", "image_size", "patch_size", "hidden_act", "layer_norm_eps", "attention_dropout"}
)  # fmt: skip
T5_KEYS = frozenset(
    {"model_type", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads",
     "relative_attention_num_buckets", "relative_attention_max_distance", "dropout_rate", "layer_norm_epsilon",
     "initializer_factor", "feed_forward_proj", "dense_act_fn", "is_gated_act", "is_encoder_decoder", "pad_token_id",
     "eos_token_id", "decoder_start_token_id", "tie_word_embeddings"}
)  # fmt: skip
QWEN3_KEYS = frozenset(
    {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
     "rope_scaling", "rope_parameters", "attention_bias", "use_sliding_window", "sliding_window",
     "max_window_layers", "layer_types", "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"}
)  # fmt: skip
DINOV2_KEYS = frozenset(
    {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "hidden_act",
     "layer_norm_eps", "image_size", "patch_size", "num_channels", "qkv_bias", "layerscale_value", "use_swiglu_ffn",
     "out_features", "out_indices", "apply_layernorm", "reshape_hidden_states", "use_mask_token"}
)  # fmt: skip
DEPTH_KEYS = frozenset(
    {"model_type", "backbone_config", "patch_size", "reassemble_hidden_size", "reassemble_factors",
     "neck_hidden_sizes", "fusion_hidden_size", "head_in_index", "head_hidden_size", "depth_estimation_type",
     "max_depth", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
     "layer_norm_eps", "image_size", "num_channels", "qkv_bias", "backbone_out_indices", "readout_type",
     "use_batch_norm_in_fusion_residual", "use_bias_in_fusion_residual", "add_projection"}
)  # fmt: skip
GEMMA2_KEYS = (QWEN3_KEYS - {"hidden_act", "use_sliding_window", "max_window_layers"}) | {
    "hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "use_bidirectional_attention",
}  # fmt: skip
# Of the language model, flat or as `text_config`, and of the tower for images.
QWEN_VL_KEYS = QWEN3_KEYS | {
    "text_config", "vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "depth", "num_heads", "in_channels", "in_chans", "out_hidden_size", "patch_size", "spatial_patch_size",
    "spatial_merge_size", "temporal_patch_size", "tokens_per_second", "window_size", "fullatt_block_indexes",
}  # fmt: skip
MISTRAL3_KEYS = QWEN3_KEYS | {
    "text_config", "vision_config", "image_token_index", "image_token_id", "spatial_merge_size", "vision_feature_layer",
    "projector_hidden_act", "multimodal_projector_bias", "image_size", "patch_size", "num_channels",
}  # fmt: skip
TOKENIZER_KEYS = frozenset(
    {"model_max_length", "add_prefix_space", "add_bos_token", "add_eos_token", "bos_token", "eos_token", "unk_token",
     "pad_token", "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "do_lower_case",
     "clean_up_tokenization_spaces", "errors", "extra_ids", "legacy", "truncation_side", "padding_side"}
)  # fmt: skip
# Larger than any known width or vocabulary.
_MAX_NUMBER = 1 << 20
# Each is a number of modules, or a table's size, that a library allocates before it compares them with the weights.
_MAX_COUNTS = {
    "num_layers": 256,
    "num_single_layers": 256,
    "n_layers": 256,
    "n_refiner_layers": 64,
    "axes_lens": 8192,
    "num_hidden_layers": 256,
    "num_decoder_layers": 256,
    "layers_per_block": 64,
    "transformer_layers_per_block": 64,
    "reverse_transformer_layers_per_block": 64,
    "num_res_blocks": 64,
    "depth": 256,
    "encoder_layers_per_block": 64,
    "decoder_layers_per_block": 64,
    "num_encoder_blocks": 64,
    "num_decoder_blocks": 64,
    "pos_embed_max_size": 512,
    # A number that nothing is allocated for, 10^9 in some language models.
    "rope_theta": 1 << 40,
    "rope_parameters": 1 << 40,
}
_MAX_TEXT = 256
_MAX_ENTRIES = 1024
_MAX_DEPTH = 3
# Configurations of parts of a network, with keys of the same list.
_NESTED = frozenset({"text_config", "vision_config"})
# A tokenizer without a limit states 1e30.
_UNBOUNDED = frozenset({"model_max_length"})


def network_config(path: Path, stored: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the `keys` of a network's configuration; of a whole CLIP those of its text tower. Raises as
    `allowed_config`."""
    if stored.get("model_type") == "clip" and isinstance(stored.get("text_config"), dict):
        stored = {**stored["text_config"], "model_type": "clip_text_model"}
    if isinstance(backbone := stored.get("backbone_config"), dict):  # a depth model
        stored = {**stored, "backbone_config": allowed_config(path, backbone, DINOV2_KEYS)}
    return allowed_config(path, stored, keys)


def allowed_config(path: Path, stored: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the `keys` of `stored`. Raises BadCheckpoint naming `path` and the key of a value out of bounds."""
    taken = {key: value for key, value in stored.items() if key in keys}
    for key, value in taken.items():
        if key in _NESTED and isinstance(value, dict):
            taken[key] = allowed_config(path, value, frozenset(keys) - _NESTED)
        elif key not in _UNBOUNDED and not _is_bounded(value, _MAX_COUNTS.get(key, _MAX_NUMBER), _MAX_DEPTH):
            raise BadCheckpoint(f"{path}: {key}={repr(value)[:60]} is out of bounds")
    return taken


def _is_bounded(value: Any, most: int, depth: int) -> bool:
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int | float):
        return abs(value) <= most
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT
    if isinstance(value, dict):
        return all(len(key) <= _MAX_TEXT for key in value) and _is_bounded(list(value.values()), most, depth)
    return depth > 0 and len(value) <= _MAX_ENTRIES and all(_is_bounded(part, most, depth - 1) for part in value)
