"""Train every part by one loop: deterministic by seed and step, resumable, with a log.

Every random draw of a step comes from a generator seeded with (seed, step), so that a run that stopped and resumed is
bit-equal to one that did not stop. A checkpoint is one safetensors file, replaced atomically; a killed run continues
from the last one, and its log drops later lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from pentimento.domain.errors import FailedPrecondition, ResourceExhausted
from zoo.files import bad_file, cannot_write, check_names, opened, read_metadata, sweep, write_tensors

LOG_EVERY = 25
CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of each parameter
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class TrainingPlan:
    """Set duration and speed; the learning rate is a function of the step only."""

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
    """Provide a module and its loss on the batch of one step."""

    name: str
    module: nn.Module

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]: ...


@dataclass
class Averaged:
    """Average a module's floating-point state exponentially, following faster at the start."""

    decay: float
    values: dict[str, Tensor] = field(default_factory=dict)

    def update(self, module: nn.Module, step: int) -> None:
        decay = min(self.decay, (1.0 + step) / (10.0 + step))
        for name, value in module.state_dict().items():
            if name not in self.values or not value.is_floating_point():
                self.values[name] = value.detach().clone()
            else:
                self.values[name].lerp_(value.detach(), 1.0 - decay)


class TrainingRun:
    """Run one part's training in a folder: `log.jsonl`, and one checkpoint file of part, average and optimiser.

    The checkpoint has `stands_on`: digests of other parts' checkpoints that this one was trained on.
    """

    def __init__(
        self, part: Part, plan: TrainingPlan, folder: Path, stands_on: Mapping[str, str] | None = None
    ) -> None:
        self.part, self.plan, self.folder, self.stands_on = part, plan, folder, stands_on
        self.average = Averaged(plan.ema_decay)
        self.optimiser = torch.optim.AdamW(
            part.module.parameters(), lr=plan.peak_rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay, foreach=True
        )
        self.step = 0
        self.checkpoint = folder / CHECKPOINT
        if self.checkpoint.exists():
            self._resume()

    def train(self, until: int | None = None) -> None:
        """Train to the plan's end, or stop early at `until` with a checkpoint.

        Raises ResourceExhausted on a full disk: the last checkpoint remains, and a later run continues from it.
        """
        end = self.plan.steps if until is None else min(until, self.plan.steps)
        try:
            with opened_log(self.folder, self.step) as log:
                sweep(self.checkpoint)
                self._go_on(end, log)
        except ResourceExhausted as error:
            raise ResourceExhausted(error.reason, f"{error.message}; {self._what_is_left()}") from None

    def _go_on(self, end: int, log: int) -> None:
        started, first = time.monotonic(), self.step
        while self.step < end:
            figures = self._one_step()
            if self.step % LOG_EVERY == 0 or self.step == end:
                self._log(log, figures | {"seconds_per_step": (time.monotonic() - started) / (self.step - first)})
            if self.step % self.plan.checkpoint_every == 0 or self.step == end:
                self._checkpoint(log)

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

    def _log(self, log: int, figures: dict[str, float]) -> None:
        line = json.dumps({name: round(value, 6) for name, value in figures.items()})
        rest = f"{line}\n".encode()
        try:
            while rest:
                rest = rest[os.write(log, rest) :]
        except OSError as error:
            raise cannot_write(self.folder / LOG, error) from None
        print(self.part.name, line, flush=True)

    def _checkpoint(self, log: int) -> None:
        tensors = {f"part.{name}": value for name, value in self.part.module.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.values.items()}
        for number, moments in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{key}": value for key, value in moments.items()}
        contents = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        state: dict[str, object] = {"part": self.part.name, "step": self.step}
        state |= {"steps": self.plan.steps, "seed": self.plan.seed}
        if self.stands_on:
            state["stands_on"] = dict(self.stands_on)
        try:
            os.fsync(log)
        except OSError as error:
            raise cannot_write(self.folder / LOG, error) from None
        write_tensors(self.checkpoint, contents, {"state": json.dumps(state)})

    def _what_is_left(self) -> str:
        if not self.checkpoint.exists():
            return "there is no checkpoint yet"
        return (
            f"the checkpoint of step {read_state(self.folder)['step']} is complete; the same command continues from it"
        )

    def _resume(self) -> None:
        what = f"a checkpoint of {self.part.name}"
        state = read_state(self.folder)
        for key, wanted in (("part", self.part.name), ("seed", self.plan.seed)):
            if state.get(key) != wanted:
                raise bad_file(self.checkpoint, what, f"its {key} is {state.get(key)!r}, not {wanted!r}")
        module = self.part.module
        self.step = int(str(state["step"]))
        where = next(module.parameters()).device
        module.load_state_dict(_read(self.folder, "part.", what, module.state_dict()))
        average = _read(self.folder, "average.", what, module.state_dict())
        self.average.values = {name: value.to(where) for name, value in average.items()}
        self._resume_optimiser(_read(self.folder, "optimiser.", what), what)

    def _resume_optimiser(self, found: dict[str, Tensor], what: str) -> None:
        count = sum(len(group["params"]) for group in self.optimiser.param_groups)
        known = {f"{number}.{key}" for number in range(count) for key in MOMENTS}
        if foreign := found.keys() - known:
            raise bad_file(self.checkpoint, what, f"its optimiser holds {min(foreign)!r}")
        moments = self.optimiser.state_dict()
        for name, value in found.items():
            number, key = name.split(".", 1)
            moments["state"].setdefault(int(number), {})[key] = value
        self.optimiser.load_state_dict(moments)


@contextmanager
def opened_log(folder: Path, step: int) -> Iterator[int]:
    """Yield a descriptor of a run's log, truncated after `step` and locked, so that one folder has one writer.

    Raises FailedPrecondition if another process trains in the folder.
    """
    path = folder / LOG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        _lock(log, folder)
        os.ftruncate(log, len(b"".join(_lines_until(path.read_bytes(), step))))
        yield log
    finally:
        os.close(log)


def _lock(log: int, folder: Path) -> None:
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailedPrecondition("TRAINING_RUNS", f"{folder}: another process trains here") from None


def _lines_until(content: bytes, last: int) -> Iterator[bytes]:
    """Yield the complete lines at the beginning, while their steps rise and are at most `last`."""
    before = 0
    for line in content.splitlines(keepends=True):
        try:
            step = json.loads(line)["step"] if line.endswith(b"\n") else None
        except (ValueError, KeyError, TypeError):
            return
        if not isinstance(step, int) or not before < step <= last:
            return
        before = step
        yield line


def read_log(folder: Path) -> list[dict[str, float]]:
    """Return a run's figures in the order of its steps; none without a log."""
    path = folder / LOG
    content = path.read_bytes() if path.is_file() else b""
    return [json.loads(line) for line in _lines_until(content, 2**63)]


def read_state(folder: Path) -> dict[str, object]:
    """Return a folder's checkpoint's part, step and total steps."""
    state = read_metadata(folder / CHECKPOINT, "a training's checkpoint", "state")
    if not isinstance(state.get("step"), int):
        raise bad_file(folder / CHECKPOINT, "a training's checkpoint", "its state names no step")
    return state


def _read(folder: Path, prefix: str, what: str, wanted: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the tensors under a prefix; with `wanted`, exactly those, each in its shape."""
    path = folder / CHECKPOINT
    with opened(path, what) as checkpoint:
        names = [name for name in checkpoint.keys() if name.startswith(prefix)]  # noqa: SIM118
        tensors = {name.removeprefix(prefix): checkpoint.get_tensor(name) for name in names}
    if wanted is not None:
        check_names(path, what, names, (prefix + name for name in wanted))
        for name, value in tensors.items():
            if value.shape != wanted[name].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(wanted[name].shape)}"
                raise bad_file(path, what, f"the shape of {prefix + name!r} is {shapes}")
    return tensors


def load_trained(module: Module, folder: Path) -> Module:
    """Load the averaged weights of a part's last checkpoint, for use or export."""
    what = f"the weights of {folder.name}"
    module.load_state_dict(_read(folder, "average.", what, module.state_dict()))
    return module.eval().requires_grad_(False)
