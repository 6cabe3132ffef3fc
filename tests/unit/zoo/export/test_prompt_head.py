"""f(t) of a discriminator, from light images of scenes that trained nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.diffusion.discriminators import open_discriminator
from zoo.export.prompt_head import measure_deferral, shipped_pair
from zoo.registry import WEIGHTS


def test_measured_deferral_is_the_share_of_the_images_and_changes_nothing_else(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(WEIGHTS / "tiny-router", tmp_path / "router"))
    before = open_discriminator(folder)
    light = replace(shipped_pair("tiny-light", "tiny-heavy").light, steps=1)

    measure_deferral(folder, light, WEIGHTS / "tiny-clip", tmp_path / "work", 8_000, 8)

    after = open_discriminator(folder)
    assert before.head is not None and after.head is not None
    assert replace(after.head.record, deferral=before.head.record.deferral) == before.head.record
    thresholds, shares = zip(*after.head.record.deferral, strict=True)
    assert thresholds == tuple(at for at, *_ in before.head.record.bounds)
    assert [8 * share for share in shares] == pytest.approx([round(8 * share) for share in shares])
    assert (shares[0], shares[-1]) == (0.0, 1.0) and list(shares) == sorted(shares)
    assert len(set(shares)) > 2
