"""Train the dual encoder: a stock CLIPModel that embeds a caption near its image.

Contrastive loss, and attributes read from both towers by one set of linear heads, so that it learns shapes and styles
within minutes. The heads stay in the work folder.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from zoo.devices import device, half_precision
from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, as_pixels, cached_drawings
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.drawing.tokenizer import MAX_TOKENS, load_tokenizer
from zoo.train.augmentation import noisy
from zoo.train.loop import TrainingPlan

PLAN = TrainingPlan(steps=1800, peak_rate=1.0e-3, ema_decay=0.995, weight_decay=0.05)
BATCH = 96
WIDTH = 128
PROJECTION = 128
PIXEL_NOISE = 0.1


def make_dual_encoder(tokenizer: CLIPTokenizer) -> CLIPModel:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_attention_heads": 4,
        "projection_dim": PROJECTION,
    }
    text = tower | {
        "num_hidden_layers": 3,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = tower | {"intermediate_size": 3 * WIDTH, "num_hidden_layers": 4, "image_size": IMAGE_SIZE, "patch_size": 8}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION))


class TowersAndHeads(nn.Module):
    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.clip = make_dual_encoder(tokenizer)
        self.heads = nn.ModuleDict({name: nn.Linear(PROJECTION, len(values)) for name, values in ATTRIBUTES.items()})

    def text(self, tokens: Tensor) -> Tensor:
        pooled = self.clip.text_model(input_ids=tokens).pooler_output
        return self.clip.text_projection(pooled)

    def image(self, pixels: Tensor) -> Tensor:
        pooled = self.clip.vision_model(pixel_values=pixels).pooler_output
        return self.clip.visual_projection(pooled)

    def attribute_loss(self, features: Tensor, wanted: Tensor) -> Tensor:
        losses = []
        for column, head in enumerate(self.heads.values()):
            target = wanted[:, column]
            if bool((target != UNSAID).any()):
                losses.append(functional.cross_entropy(head(features).float(), target, ignore_index=UNSAID))
        return torch.stack(losses).mean()


class DualEncoderPart:
    name = "dual-encoder"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        tokenizer = load_tokenizer(work / "tokenizer")
        self.module = TowersAndHeads(tokenizer).to(device())
        self.batch = batch
        self.drawings = cached_drawings(work, TRAIN_SEED, count, tokenizer)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.drawings), (self.batch,), generator=generator)
        pixels = noisy(as_pixels(self.drawings.images[rows]), PIXEL_NOISE, generator).to(device())
        with half_precision():
            images = self.module.image(pixels).float()
            # Captions end long before the tower's last position: the padding after them changes nothing.
            tokens = self.drawings.tokens[rows]
            length = int((tokens != tokens[0, -1]).sum(dim=1).max()) + 1
            texts = self.module.text(tokens[:, :length].to(device())).float()
        scale = self.module.clip.logit_scale.exp().clamp(max=100.0)
        logits = scale * functional.normalize(texts, dim=-1) @ functional.normalize(images, dim=-1).T
        own = torch.arange(self.batch, device=logits.device)
        contrast = (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2.0
        seen = self.module.attribute_loss(images, self.drawings.image_labels[rows].to(device()))
        said = self.module.attribute_loss(texts, self.drawings.text_labels[rows].to(device()))
        first = float((logits.detach().argmax(dim=1) == own).float().mean())
        figures = {"contrast": float(contrast.detach()), "seen": float(seen.detach()), "said": float(said.detach())}
        return contrast + seen + said, figures | {"first": first}
