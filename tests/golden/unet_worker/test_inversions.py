"""Compare latents of prompts with textual inversions from files, through the real service, with diffusers' pipelines of
checkpoints that hold the same vectors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lab.fixtures.checkpoints import add_inversion, write_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from pentimento.domain.generation import Scheduler
from tests.golden.unet_worker.comparison import compare
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

VECTORS = 3


def cases_for(schedulers: Sequence[Scheduler]) -> list[Case]:
    return [
        Case("a bad-cat", "bad-cat, grey", schedulers[0], seed=1, steps=3),
        Case("a dog", "", schedulers[0], steps=3),
    ]


@pytest.mark.parametrize(
    ("write", "widths"), [(write_checkpoint, {"emb_params": 16}), (write_xl_checkpoint, {"clip_l": 16, "clip_g": 24})]
)
async def test_inversion_latents_equal_those_of_diffusers(
    write: Callable[[Path], Path], widths: Mapping[str, int], tmp_path: Path
) -> None:
    embeddings = tmp_path / "adapters" / "embeddings"
    embeddings.mkdir(parents=True)
    # Drawn as `add_inversion` draws them.
    vectors = {
        key: torch.randn(VECTORS, width, generator=torch.Generator().manual_seed(5)) for key, width in widths.items()
    }
    save_file(vectors, embeddings / "bad-cat.safetensors")
    saved = add_inversion(write(tmp_path / "saved"), "bad-cat", VECTORS)

    count, differences = await compare(
        write(tmp_path / "model"), cases_for, reference=saved, adapters_dir=embeddings.parent
    )

    assert len(differences) == count
    assert all(value == 0.0 for value in differences.values()), differences
