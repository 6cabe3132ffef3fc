"""The loop every part is trained by: deterministic by seed and step, resumable, logging as it goes.

Every random draw of a step comes from a generator seeded with (seed, step), so a run that stopped and resumed
is bit-equal to one that did not stop. A checkpoint is one safetensors file, replaced at once.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

LOG_EVERY = 25
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Plan:
    """How long and how fast; the learning rate is a function of the step alone."""

    steps: int
    peak_rate: float
    warmup: int = 100
    cooldown: float = 0.4  # the last fraction of the steps, over which the rate falls to nothing
    weight_decay: float = 0.01
    ema_decay: float = 0.999
    checkpoint_every: int = 200
    seed: int = 0

    def rate(self, step: int) -> float:
        rising = (step + 1) / max(1, self.warmup)
        falling = (self.steps - step) / max(1.0, self.cooldown * self.steps)
        return self.peak_rate * max(0.0, min(1.0, rising, falling))


class Part(Protocol):
    """What a training script provides: a module and its loss on the batch of one step."""

    name: str
    module: nn.Module

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]: ...


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def half_precision() -> AbstractContextManager[object]:
    """bf16 autocast where it pays: on a GPU. Without AMX a CPU multiplies bf16 at half the speed of fp32."""
    return torch.autocast("cuda", torch.bfloat16) if device().type == "cuda" else nullcontext()


@dataclass
class Averaged:
    """An exponential moving average of a module's floating-point state; faster to follow at the start."""

    decay: float
    values: dict[str, Tensor] = field(default_factory=dict)

    def update(self, module: nn.Module, step: int) -> None:
        decay = min(self.decay, (1.0 + step) / (10.0 + step))
        for name, value in module.state_dict().items():
            if name not in self.values or not value.is_floating_point():
                self.values[name] = value.detach().clone()
            else:
                self.values[name].lerp_(value.detach(), 1.0 - decay)


class Run:
    """One part's training in a folder: `log.jsonl`, and one checkpoint file of part, average and optimiser."""

    def __init__(self, part: Part, plan: Plan, folder: Path) -> None:
        self.part, self.plan, self.folder = part, plan, folder
        self.average = Averaged(plan.ema_decay)
        self.optimiser = torch.optim.AdamW(
            part.module.parameters(), lr=plan.peak_rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay, foreach=True
        )
        self.step = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / CHECKPOINT
        if self.checkpoint.exists():
            self._resume()

    def train(self, until: int | None = None) -> None:
        """Go on to the plan's end, or stop early at `until` with a checkpoint."""
        end = self.plan.steps if until is None else min(until, self.plan.steps)
        started, first = time.monotonic(), self.step
        while self.step < end:
            figures = self._one_step()
            if self.step % LOG_EVERY == 0 or self.step == end:
                self._log(figures | {"seconds_per_step": (time.monotonic() - started) / (self.step - first)})
            if self.step % self.plan.checkpoint_every == 0 or self.step == end:
                self._checkpoint()

    def _one_step(self) -> dict[str, float]:
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.step)
        rate = self.plan.rate(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.part.module.train()
        loss, figures = self.part.loss(generator)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.part.module.parameters(), 1.0)
        self.optimiser.step()
        self.average.update(self.part.module, self.step)
        self.step += 1
        return {"step": self.step, "loss": float(loss.detach()), "rate": rate} | figures

    def _log(self, figures: dict[str, float]) -> None:
        line = json.dumps({name: round(value, 6) for name, value in figures.items()})
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(line + "\n")
        print(self.part.name, line, flush=True)

    def _checkpoint(self) -> None:
        tensors = {f"part.{name}": value for name, value in self.part.module.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.values.items()}
        for number, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{key}": value for key, value in moments.items()}
        contents = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        state = {"part": self.part.name, "step": self.step, "steps": self.plan.steps, "seed": self.plan.seed}
        partial = self.checkpoint.with_suffix(".partial")
        save_file(contents, partial, metadata={"state": json.dumps(state)})
        partial.replace(self.checkpoint)

    def _resume(self) -> None:
        self.step = int(read_state(self.folder)["step"])
        where = next(self.part.module.parameters()).device
        self.part.module.load_state_dict(_read(self.folder, "part."))
        self.average.values = {name: value.to(where) for name, value in _read(self.folder, "average.").items()}
        state = self.optimiser.state_dict()
        for name, value in _read(self.folder, "optimiser.").items():
            number, key = name.split(".", 1)
            state["state"].setdefault(int(number), {})[key] = value
        self.optimiser.load_state_dict(state)


def read_state(folder: Path) -> dict[str, object]:
    """Which part, how far and of how many steps a folder's checkpoint is."""
    with safe_open(folder / CHECKPOINT, "pt") as checkpoint:
        state: dict[str, object] = json.loads(checkpoint.metadata()["state"])
    return state


def _read(folder: Path, prefix: str) -> dict[str, Tensor]:
    with safe_open(folder / CHECKPOINT, "pt") as checkpoint:
        names = [name for name in checkpoint.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name.removeprefix(prefix): checkpoint.get_tensor(name) for name in names}


def load_trained(module: nn.Module, folder: Path) -> nn.Module:
    """The averaged weights of a part's last checkpoint, ready to be used or exported."""
    module.load_state_dict(_read(folder, "average."))
    return module.eval().requires_grad_(False)
