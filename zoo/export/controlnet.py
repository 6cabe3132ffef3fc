"""Write a trained ControlNet as a directory that stock diffusers loads: `ControlNetModel.from_pretrained(folder)`."""

from __future__ import annotations

from pathlib import Path

from zoo.export.directories import save_diffusers_model
from zoo.train.controlnet import make_controlnet
from zoo.train.denoiser import make_heavy
from zoo.train.loop import load_trained


def export_controlnet(work: Path, part: str, folder: Path) -> None:
    """Write `part` (controlnet-edges or controlnet-layout) from its last checkpoint in the work folder."""
    save_diffusers_model(load_trained(make_controlnet(make_heavy()), work / part), folder)
