"""Run the forward passes of UNet2DConditionModel and ControlNetModel, written out over diffusers' layers in their order
of operations.

Values that are constant across steps are computed once: keys and values of the text depend only on the prompt
(`project_text`, once per request); the timestep's terms of the residual blocks depend only on the timestep, in SDXL on
the request too (`time_terms`). The results are the same bits as diffusers' pass.

The pass has two halves: `encode` runs the encoder and the mid block, `decode` takes ControlNets' residuals and runs the
decoder (Katz, section 5). `decode` in turn has two: the `deep` layers, and `finish`, which a later step may run on deep
features of this one and its own `shallow` layers (DeepCache, Ma et al. 2023, section 3.2).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.families.image_prompts import CrossAttention, ImagePromptRows
from pentimento.diffusion.families.model import Conditioning, ControlResiduals
from pentimento.diffusion.kernels.layers import (
    FusedLayerNorm,
    FusedNorm,
    lies_channels_last,
    projected,
    projects_tokens,
    residual_block,
)

_BLOCKS = frozenset(
    {"DownBlock2D", "CrossAttnDownBlock2D", "UNetMidBlock2DCrossAttn", "UpBlock2D", "CrossAttnUpBlock2D"}
)


# The last stages of the decoder that run in every step. They take the skip connections of the encoder's first layer and
# first stage, DeepCache's outermost branch.
_OUTER_STAGES = 2


@dataclass(frozen=True)
class AttendedTexts:
    """Hold what the cross-attention layers attend to: keys and values of the text (rows, tokens, widths), and of the
    rows' image prompts."""

    projected: Tensor
    images: tuple[ImagePromptRows, ...] = ()

    def by_layer(self, widths: Sequence[int]) -> "list[LayerTexts]":
        """Return the parts of each layer, in the order of the pass; `widths` are those of keys and values."""
        texts = _pairs(self.projected, widths)
        images = [
            [(key, value, one.scales[:, None, None, None]) for key, value in _pairs(one.projected, widths)]
            for one in self.images
        ]
        return [(key, value, tuple(parts[place] for parts in images)) for place, (key, value) in enumerate(texts)]


# Key and value of the text at one layer, and key, value and scale of each image prompt.
LayerTexts = tuple[Tensor, Tensor, tuple[tuple[Tensor, Tensor, Tensor], ...]]


def _pairs(projected: Tensor, widths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    parts = projected.split(list(widths), dim=-1)
    return list(zip(parts[::2], parts[1::2], strict=True))


@dataclass(frozen=True)
class UNetEncoding:
    """Hold the encoder's output: the mid block's output, and the skip connections from shallow to deep."""

    hidden: Tensor
    skips: tuple[Tensor, ...]

    def controlled(self, residuals: ControlResiduals | None) -> "UNetEncoding":
        """Return the encoding with residuals added to the skip connections and to the mid block's output."""
        if residuals is None:
            return self
        hidden, skips = self.hidden, self.skips
        if residuals.down_block_residuals:
            skips = tuple(skip + residual for skip, residual in zip(skips, residuals.down_block_residuals, strict=True))
        if residuals.mid_block_residual is not None:
            hidden = hidden + residuals.mid_block_residual
        return UNetEncoding(hidden, skips)


class EncoderPasses:
    """Run the passes of a network's encoder and mid block, which are all of a ControlNet. Layers stay diffusers'
    modules: patched weights take effect."""

    def __init__(self, network: Any) -> None:
        """Wrap a `network` that `covers` accepts."""
        self._network = network
        encoder = [*network.down_blocks, network.mid_block]
        decoder = list(getattr(network, "up_blocks", ()))
        self._residual_blocks = [resnet for block in (*encoder, *decoder) for resnet in block.resnets]
        self._text_layers = [layer.attn2 for block in (*encoder, *decoder) for layer in _transformer_layers(block)]
        self.skip_count = 1 + sum(len(block.resnets) + len(block.downsamplers or ()) for block in network.down_blocks)
        self._encoder_residual_count = sum(len(block.resnets) for block in encoder)
        self._encoder_text_count = sum(len(_transformer_layers(block)) for block in encoder)
        self._text_widths = [layer.to_k.out_features for layer in self._text_layers for _ in range(2)]
        self._term_widths = [block.time_emb_proj.out_features for block in self._residual_blocks]

    @property
    def cross_attentions(self) -> tuple[CrossAttention, ...]:
        """Return the cross-attention layers in the order of the network's modules, as IP-Adapters count them."""
        places = {layer: place for place, layer in enumerate(self._text_layers)}
        layers = [layer for layer in self._network.modules() if layer in places]
        return tuple(CrossAttention(one.to_k.in_features, one.to_k.out_features, places[one]) for one in layers)

    def project_text(self, states: Tensor) -> Tensor:
        """Return keys and values of all cross-attention layers, concatenated: (rows, tokens, widths)."""
        return torch.cat([part(states) for layer in self._text_layers for part in (layer.to_k, layer.to_v)], dim=-1)

    def time_terms(
        self, timesteps: Tensor, dtype: torch.dtype, added: dict[str, Tensor] | None = None, kinds: Tensor | None = None
    ) -> Tensor:
        """Return the terms that the residual blocks add at these timesteps (rows,), concatenated: (rows, widths).
        `kinds` (rows, width) is the embedding of a ControlNet-Union's kinds."""
        network = self._network
        embedding = network.time_embedding(network.time_proj(timesteps).to(dtype))
        embedding = embedding if kinds is None else embedding + kinds
        if added is not None:
            embedding = embedding + _embedded_conditions(network, added, embedding.dtype)
        embedding = functional.silu(embedding)
        return torch.cat([block.time_emb_proj(embedding) for block in self._residual_blocks], dim=1)

    def encode(
        self, latents: Tensor, texts: AttendedTexts, terms: Tensor, condition: Tensor | None = None
    ) -> UNetEncoding:
        """Run the encoder and the mid block on latents (rows, channels, height, width). An embedded `condition` is
        added after the first layer."""
        hidden = self._network.conv_in(latents)
        return self.encode_behind(hidden if condition is None else hidden + condition, texts, terms)

    def encode_behind(self, hidden: Tensor, texts: AttendedTexts, terms: Tensor) -> UNetEncoding:
        """Run the encoder without its first layer, and the mid block, on that layer's output."""
        layers = iter(self._layers(texts)[: self._encoder_text_count])
        added = iter(self._terms(terms)[: self._encoder_residual_count])
        skips = [hidden]
        for block in self._network.down_blocks:
            for resnet, attention in _stages(block):
                hidden = _attend(attention, _residual(resnet, hidden, next(added)), layers)
                skips.append(hidden)
            for downsampler in block.downsamplers or ():
                hidden = downsampler(hidden)
                skips.append(hidden)
        middle = self._network.mid_block
        hidden = _residual(middle.resnets[0], hidden, next(added))
        for attention, resnet in zip(middle.attentions, middle.resnets[1:], strict=True):
            hidden = _residual(resnet, _attend(attention, hidden, layers), next(added))
        return UNetEncoding(hidden, tuple(skips))

    def _layers(self, texts: AttendedTexts) -> list[LayerTexts]:
        """Return what each cross-attention layer attends to, in the order of the pass."""
        return texts.by_layer(self._text_widths)

    def _terms(self, terms: Tensor) -> tuple[Tensor, ...]:
        """Return the timestep's terms by residual block, in the order of the pass."""
        return torch.split(terms[:, :, None, None], self._term_widths, dim=1)


class UNetPasses(EncoderPasses):
    """Run the passes of one UNet."""

    def decode(
        self, encoded: UNetEncoding, texts: AttendedTexts, terms: Tensor, residuals: ControlResiduals | None = None
    ) -> Tensor:
        """Return the prediction, shaped as the latents. `residuals` are first added to the skip connections and to the
        mid block's output."""
        encoded = encoded.controlled(residuals)
        return self.finish(self.deep(encoded, texts, terms), encoded.skips, texts, terms)

    def deep(self, encoded: UNetEncoding, texts: AttendedTexts, terms: Tensor) -> Tensor:
        """Return the output of the decoder before its last stages: (rows, channels, height, width)."""
        layers = iter(self._layers(texts)[self._encoder_text_count :])
        added = iter(self._terms(terms)[self._encoder_residual_count :])
        hidden, skips = encoded.hidden, list(encoded.skips)
        for block in self._network.up_blocks[:-1]:
            for stage in _stages(block):
                hidden = _joined(stage, hidden, skips, layers, added)
            for upsampler in block.upsamplers or ():
                hidden = upsampler(hidden, _upsampled_size(hidden, skips))
        for stage in list(_stages(self._network.up_blocks[-1]))[:-_OUTER_STAGES]:
            hidden = _joined(stage, hidden, skips, layers, added)
        return hidden

    def finish(self, deep: Tensor, skips: Sequence[Tensor], texts: AttendedTexts, terms: Tensor) -> Tensor:
        """Return the prediction from deep features and the first skip connections, those of `shallow` or more."""
        unet, hidden = self._network, deep
        stages = list(_stages(unet.up_blocks[-1]))[-_OUTER_STAGES:]
        text_count = sum(len(one.transformer_blocks) for _, one in stages if one is not None)
        layers = iter(self._layers(texts)[len(self._text_layers) - text_count :])
        added = iter(self._terms(terms)[-_OUTER_STAGES:])
        remaining = list(skips[:_OUTER_STAGES])
        for stage in stages:
            hidden = _joined(stage, hidden, remaining, layers, added)
        return cast("Tensor", unet.conv_out(unet.conv_act(unet.conv_norm_out(hidden))))

    def shallow(self, latents: Tensor, texts: AttendedTexts, terms: Tensor) -> tuple[Tensor, ...]:
        """Return the skip connections that `finish` needs, from the encoder's first layers alone."""
        layers, added = iter(self._layers(texts)), iter(self._terms(terms))
        skips = [self._network.conv_in(latents)]
        for resnet, attention in list(_stages(self._network.down_blocks[0]))[: _OUTER_STAGES - 1]:
            skips.append(_attend(attention, _residual(resnet, skips[-1], next(added)), layers))
        return tuple(skips)


def covers(network: Any) -> bool:
    """Return whether the passes support every block and option of a UNet or ControlNet."""
    if network.mid_block is None:
        return False
    blocks = (*network.down_blocks, network.mid_block, *getattr(network, "up_blocks", ()))
    return (
        all(type(block).__name__ in _BLOCKS for block in blocks)
        and all(_is_plain_residual(resnet) for block in blocks for resnet in block.resnets)
        and all(_is_plain_layer(layer) for block in blocks for layer in _transformer_layers(block))
        and all(_is_plain_transformer(one) for block in blocks for one in getattr(block, "attentions", ()))
        and getattr(network, "time_embed_act", None) is None
        and not getattr(network.config, "center_input_sample", False)
        and network.config.class_embed_type is None
        and getattr(network, "encoder_hid_proj", None) is None
        and network.config.addition_embed_type in (None, "text_time")
    )


def added_conditions(conditioning: Conditioning) -> dict[str, Tensor] | None:
    """Return SDXL's conditioning besides the text states; None for a family without."""
    if conditioning.pooled is None or conditioning.sizes is None:
        return None
    return {"text_embeds": conditioning.pooled, "time_ids": conditioning.sizes}


def _embedded_conditions(network: Any, added: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the embedding of SDXL's pooled text and sizes, which is added to the timestep's."""
    pooled, sizes = added["text_embeds"], added["time_ids"]
    embedded = network.add_time_proj(sizes.flatten()).reshape(pooled.shape[0], -1)
    return cast("Tensor", network.add_embedding(torch.cat([pooled, embedded], dim=-1).to(dtype)))


def _is_plain_residual(resnet: Any) -> bool:
    return (
        resnet.time_embedding_norm == "default"
        and resnet.time_emb_proj is not None
        and not resnet.skip_time_act
        and resnet.upsample is None
        and resnet.downsample is None
        and isinstance(resnet.nonlinearity, torch.nn.SiLU)
    )


def _is_plain_transformer(transformer: Any) -> bool:
    return type(transformer).__name__ == "Transformer2DModel" and transformer.is_input_continuous


def _is_plain_layer(layer: Any) -> bool:
    attentions = (layer.attn1, layer.attn2)
    return (
        layer.norm_type == "layer_norm"
        and layer.pos_embed is None
        and not layer.only_cross_attention
        and layer._chunk_size is None
        and type(layer.ff.net[0]).__name__ == "GEGLU"
        and all(attention is not None and _is_plain_attention(attention) for attention in attentions)
    )


def _is_plain_attention(attention: Any) -> bool:
    parts = (attention.spatial_norm, attention.group_norm, attention.norm_cross, attention.norm_q, attention.norm_k)
    return (
        type(attention.processor).__name__ == "AttnProcessor2_0"
        and all(part is None for part in parts)
        and not attention.residual_connection
        and attention.rescale_output_factor == 1.0
    )


def _transformer_layers(block: Any) -> list[Any]:
    return [layer for one in getattr(block, "attentions", ()) for layer in one.transformer_blocks]


def _stages(block: Any) -> Iterator[tuple[Any, Any]]:
    """Return the block's residual blocks, each with the transformer after it, None if the block has none."""
    attentions: Sequence[Any] = getattr(block, "attentions", None) or [None] * len(block.resnets)
    return zip(block.resnets, attentions, strict=True)


def _joined(
    stage: tuple[Any, Any], hidden: Tensor, skips: list[Tensor], layers: Iterator[LayerTexts], added: Iterator[Tensor]
) -> Tensor:
    """Run one stage of the decoder on its input and the last of the skip connections, which it takes."""
    resnet, attention = stage
    hidden = torch.cat([hidden, skips.pop()], dim=1)
    return _attend(attention, _residual(resnet, hidden, next(added)), layers)


def _upsampled_size(hidden: Tensor, skips: Sequence[Tensor]) -> torch.Size | None:
    """Return the size of the next skip connection if doubling misses it: an odd side was rounded up."""
    if not skips or [2 * side for side in hidden.shape[2:]] == list(skips[-1].shape[2:]):
        return None
    return skips[-1].shape[2:]


def _residual(resnet: Any, inputs: Tensor, term: Tensor) -> Tensor:
    """Run one residual block. Its own intermediate tensors are changed in place."""
    if isinstance(resnet.norm2, FusedNorm):
        return residual_block(resnet, inputs, term[:, :, 0, 0])
    hidden: Tensor = resnet.conv1(functional.silu(resnet.norm1(inputs), inplace=True))
    hidden = resnet.conv2(functional.silu(resnet.norm2(hidden.add_(term)), inplace=True))
    shortcut = inputs if resnet.conv_shortcut is None else resnet.conv_shortcut(inputs)
    hidden = hidden.add_(shortcut)
    return hidden if resnet.output_scale_factor == 1.0 else hidden.div_(resnet.output_scale_factor)


def _attend(transformer: Any, inputs: Tensor, texts: Iterator[LayerTexts]) -> Tensor:
    """Run one spatial transformer; return the inputs unchanged if it is None."""
    if transformer is None:
        return inputs
    rows, _, height, width = inputs.shape
    of_tokens = transformer.use_linear_projection or projects_tokens(transformer)
    hidden: Tensor = transformer.norm(inputs)
    hidden = hidden if of_tokens else transformer.proj_in(hidden)
    hidden = hidden.permute(0, 2, 3, 1).reshape(rows, height * width, -1)
    hidden = projected(transformer.proj_in, hidden) if of_tokens else hidden
    hidden = _transform(transformer.transformer_blocks, hidden, texts)
    hidden = projected(transformer.proj_out, hidden) if of_tokens else hidden
    hidden = hidden.reshape(rows, height, width, -1).permute(0, 3, 1, 2)
    hidden = hidden if lies_channels_last(inputs) else hidden.contiguous()
    hidden = hidden if of_tokens else transformer.proj_out(hidden)
    return hidden + inputs if of_tokens else hidden.add_(inputs)


def _transform(layers: Sequence[Any], hidden: Tensor, texts: Iterator[LayerTexts]) -> Tensor:
    """Run transformer layers in order: self-attention, attention to the text, feed-forward (GEGLU)."""
    own = layers[0].norm1(hidden)
    for place, layer in enumerate(layers, 1):
        key, value, images = next(texts)
        change = _attention(layer.attn1, own, layer.attn1.to_k(own), layer.attn1.to_v(own))
        hidden, own = _added(layer.norm2, change, hidden)
        hidden, own = _added(layer.norm3, _attention(layer.attn2, own, key, value, images), hidden)
        change = layer.ff.net[2](layer.ff.net[0](own))
        if place == len(layers):
            break
        hidden, own = _added(layers[place].norm1, change, hidden)
    return change.add_(hidden)


def _added(norm: Any, change: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the sum normalised; without a fused kernel the sum overwrites `change`."""
    if isinstance(norm, FusedLayerNorm):
        return norm.added(change, hidden)
    hidden = change.add_(hidden)
    return hidden, norm(hidden)


def _attention(
    attention: Any, inputs: Tensor, key: Tensor, value: Tensor, images: Sequence[tuple[Tensor, Tensor, Tensor]] = ()
) -> Tensor:
    """Return the layer's attention to key and value, and to those of `images` in addition, times their scales."""
    rows, heads = inputs.shape[0], attention.heads
    query, key, value = (_by_head(part, heads) for part in (attention.to_q(inputs), key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value)
    for image_key, image_value, scales in images:
        image_key, image_value = _by_head(image_key, heads), _by_head(image_value, heads)
        mixed = mixed + scales * functional.scaled_dot_product_attention(query, image_key, image_value)
    mixed = mixed.transpose(1, 2).reshape(rows, -1, attention.inner_dim)
    return cast("Tensor", attention.to_out[0](mixed))


def _by_head(part: Tensor, heads: int) -> Tensor:
    return part.view(part.shape[0], -1, heads, part.shape[-1] // heads).transpose(1, 2)
