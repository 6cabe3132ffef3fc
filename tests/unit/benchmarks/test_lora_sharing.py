"""Test which latents requests with LoRAs share, on hand-made logs, under the gateway's keys."""

import numpy as np
import pytest

from benchmarks.lora_sharing import BOUND, SharingBlock, blocks, extra_hits, extra_steps, lora_starts
from benchmarks.prompt_logs import Vectors
from lab.workloads.production import Choice


def asking(*loras: str, model: str = "base") -> Choice:
    return Choice("somebody", model, loras, ())


def alike(count: int, cosine: float = 1.0) -> Vectors:
    """Return unit vectors with this cosine between any two."""
    common, own = np.sqrt(cosine), np.sqrt(1.0 - cosine)
    return np.concatenate([np.full((count, 1), common), own * np.eye(count)], axis=1).astype(np.float32)


def saved(vectors: Vectors, choices: list[Choice], patched_after: int) -> list[int]:
    return [start.saved_steps for start in lora_starts(vectors, choices, patched_after)]


def test_bound_latents_serve_same_loras_only() -> None:
    choices = [asking("a"), asking("b"), asking(), asking("a"), asking("b", "a")]

    assert saved(alike(5), choices, BOUND) == [0, 0, 0, 25, 0]


def test_shared_latents_before_patch_serve_whole_model() -> None:
    choices = [asking("a"), asking("b"), asking(), asking("a"), asking("a", model="another")]

    # 25 steps are allowed. The first one's latents up to 10 are shared.
    assert saved(alike(5), choices, 10) == [0, 10, 10, 25, 0]


def test_shared_latents_respect_similarity() -> None:
    assert saved(alike(2, 0.7), [asking("a"), asking("b")], 20) == [0, 5]
    assert saved(alike(2, 0.5), [asking("a"), asking("b")], 20) == [0, 0]


def test_lora_order_does_not_change_scope() -> None:
    assert saved(alike(2), [asking("a", "b"), asking("b", "a")], BOUND) == [0, 25]


def test_extra_hits_are_in_points_over_blocks() -> None:
    choices = [asking("a"), asking("b"), asking(), asking("a")]
    bound, shared = (lora_starts(alike(4), choices, after) for after in (BOUND, 10))

    everybody, styled = (blocks(bound, shared, alone) for alone in (False, True))

    assert everybody == [SharingBlock(4, 1, 3, 25, 45)]
    assert styled == [SharingBlock(3, 1, 2, 25, 35)]
    assert (extra_hits(everybody), extra_steps(everybody)) == pytest.approx((50.0, 10.0))
    assert extra_hits([]) == 0.0
