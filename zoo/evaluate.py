"""Measure the exported zoo on held-out scenes: `python -m zoo.evaluate`; writes EVALUATION.json beside the weights.

Prompts, noise and pictures are the same for both denoisers (paired seeds). The judge shares no weight with them.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPModel, CLIPTokenizer

from zoo.captions import canonical_caption, labels, natural_caption
from zoo.cards import write_cards
from zoo.dataset import HELD_OUT_SEED, tokenise
from zoo.painting import load_pipeline, paint
from zoo.registry import WEIGHTS, read_registry, write_registry
from zoo.scenes import draw, scene_at
from zoo.train import WORK
from zoo.train_autoencoder import psnr
from zoo.train_judge import Judge, attribute_scores
from zoo.training import CHECKPOINT, load_trained

AMONG = 64
GATE = 0.8


class Examiner:
    """Held-out scenes with captions, the dual encoder, and the judge where there is one."""

    def __init__(self, weights: Path, work: Path, count: int) -> None:
        self.tokenizer = CLIPTokenizer.from_pretrained(weights / "tiny-clip")
        self.clip = CLIPModel.from_pretrained(weights / "tiny-clip").eval()
        self.judge: Judge | None = None
        if (work / "judge" / CHECKPOINT).exists():
            self.judge = load_trained(Judge(), work / "judge")  # type: ignore[assignment]
        pictures, coverages, captions, canonical, said = [], [], [], [], []
        for index in range(count):
            scene, rng = scene_at(HELD_OUT_SEED, index)
            picture, coverage = draw(scene)
            caption = natural_caption(scene, rng)
            pictures.append(torch.from_numpy(picture).permute(2, 0, 1))
            coverages.append(torch.from_numpy(coverage))
            captions.append(caption.text)
            canonical.append(canonical_caption(scene))
            said.append(labels(scene, caption.said))
        self.drawn, self.coverage = torch.stack(pictures), torch.stack(coverages)
        self.captions, self.canonical = captions, canonical
        self.said = torch.tensor(said)
        self.texts = self.embed_texts(captions)

    @torch.no_grad()
    def embed_texts(self, captions: list[str]) -> Tensor:
        pooled = self.clip.text_model(input_ids=tokenise(self.tokenizer, captions)).pooler_output
        return functional.normalize(self.clip.text_projection(pooled), dim=-1)

    @torch.no_grad()
    def embed_images(self, pictures: Tensor) -> Tensor:
        pooled = self.clip.vision_model(pixel_values=pictures * 2.0 - 1.0).pooler_output
        return functional.normalize(self.clip.visual_projection(pooled), dim=-1)

    def examine(self, pictures: Tensor) -> dict[str, object]:
        """CLIPScore (cosine to the own caption), own caption first among 64, and the judge's attributes."""
        similarity = self.embed_images(pictures) @ self.texts.T
        blocks = [similarity[i : i + AMONG, i : i + AMONG] for i in range(0, len(similarity) - AMONG + 1, AMONG)]
        first = torch.cat([block.argmax(dim=1) == torch.arange(AMONG) for block in blocks])
        found: dict[str, object] = {
            "clip_score": round(float(similarity.diagonal().mean()), 4),
            "own_caption_first_of_64": round(float(first.float().mean()), 4),
        }
        if self.judge is not None:
            scores = attribute_scores(self.judge, pictures * 2.0 - 1.0, self.said)
            found["attributes"] = {name: round(value, 3) for name, value in scores.items()}
        return found


def retrieval(examiner: Examiner) -> dict[str, float]:
    """Text to image and image to text, first among 256 drawn pictures."""
    images = examiner.embed_images(examiner.drawn)[:256]
    figures = {}
    for name, texts in (("natural", examiner.texts), ("canonical", examiner.embed_texts(examiner.canonical))):
        similarity = texts[:256] @ images.T
        own = torch.arange(len(similarity))
        figures[f"{name}_at_1"] = round(float((similarity.argmax(dim=1) == own).float().mean()), 4)
        figures[f"{name}_image_to_text_at_1"] = round(float((similarity.argmax(dim=0) == own).float().mean()), 4)
    return figures


@torch.no_grad()
def reconstruct(examiner: Examiner, weights: Path) -> tuple[Tensor, dict[str, float]]:
    autoencoder = load_pipeline(weights / "tiny-heavy").vae
    pixels = examiner.drawn * 2.0 - 1.0
    latents = autoencoder.encode(pixels).latents
    rebuilt = autoencoder.decode(latents).sample.clamp(-1.0, 1.0)
    everywhere = torch.ones_like(examiner.coverage)
    figures = {
        "psnr_db": round(psnr(rebuilt, pixels, everywhere), 2),
        "foreground_psnr_db": round(psnr(rebuilt, pixels, (examiner.coverage > 0).float()), 2),
        "latent_std": round(float(latents.std()), 3),
        "latent_mean": round(float(latents.mean()), 3),
    }
    return (rebuilt + 1.0) / 2.0, figures


def evaluate(weights: Path, work: Path, count: int, seed: int) -> dict[str, object]:
    examiner = Examiner(weights, work, count)
    registry = read_registry(weights)
    rebuilt, reconstruction = reconstruct(examiner, weights)
    seeds = [seed * 1_000_003 + index for index in range(count)]
    report: dict[str, object] = {
        "prompts": count,
        "seeds_per_prompt": 1,
        "dual_encoder": {"n": min(256, count)} | retrieval(examiner),
        "drawn": examiner.examine(examiner.drawn),
        "reconstruction": reconstruction | examiner.examine(rebuilt),
    }
    for name in ("tiny-heavy", "tiny-light"):
        steps, scale = int(registry[name]["default_steps"]), float(registry[name]["default_guidance_scale"])  # type: ignore[call-overload,arg-type]
        pictures = paint(load_pipeline(weights / name), examiner.captions, seeds, steps, scale)
        report[name] = {"steps": steps, "guidance_scale": scale} | examiner.examine(pictures)
        print(name, json.dumps(report[name]), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.evaluate", description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--work", type=Path, default=WORK, help="where the judge's checkpoint is")
    parser.add_argument("--count", type=int, default=256, help="held-out prompts, a multiple of 64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = evaluate(arguments.weights, arguments.work, arguments.count, arguments.seed)
    content = json.dumps(report, indent=2) + "\n"
    (arguments.weights / "EVALUATION.json").write_text(content, encoding="utf-8")
    write_cards(arguments.weights)
    write_registry(arguments.weights)
    print(content)
    first = report["tiny-heavy"]["own_caption_first_of_64"]  # type: ignore[index]
    print(f"own caption first of 64, heavy: {first} target {GATE} {'ok' if first >= GATE else 'short'}")
    raise SystemExit(0 if first >= GATE else 1)


if __name__ == "__main__":
    main()
