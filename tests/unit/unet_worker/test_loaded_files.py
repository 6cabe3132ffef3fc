"""Bound the product files that a worker loads: its wiring, then a model without LoRAs, ControlNets or profiles."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint

# Without generated code. A file more needs a reason: most workers have no LoRA, IP-Adapter or profile.
MOST_OF_WIRING = 190
MOST_WITH_MODEL = 221
# Run in a separate process: imports cannot be undone.
SCRIPT = """
import sys
from pathlib import Path
from services.unet_worker import wiring

def loaded():
    ours = [name for name in sys.modules if name.partition(".")[0] in ("pentimento", "services")]
    return sorted(name for name in ours if not name.startswith("pentimento.api") and sys.modules[name].__file__)

print(*loaded())
from pentimento.devices.choices import DeviceChoice, DtypeChoice
from services.unet_worker.models.checkpoint_loading import load_checkpoint
load_checkpoint(Path(sys.argv[1]), DeviceChoice.CPU, DtypeChoice.FLOAT32)
print(*loaded())
"""
FAMILIES = "pentimento.diffusion.families"
UNUSED = {
    "pentimento.diffusion.controlnets.loading",
    "pentimento.diffusion.image_prompts",
    "pentimento.diffusion.kernels.fusing",
    "pentimento.diffusion.loras.reading",
    "pentimento.diffusion.schedulers.flow_solvers",
    "pentimento.profiles.catalogue",
    "services.unet_worker.adapters.lora_directory",
    "services.unet_worker.profiling.command",
    *(f"{FAMILIES}.{name}" for name in ("flux", "flux_2", "sana", "stable_diffusion_3", "stable_diffusion_xl")),
}


@pytest.mark.slow
def test_worker_loads_the_files_of_one_family_and_of_no_adapter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(write_checkpoint(tmp_path / "model"))]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    of_wiring, with_model = (line.split() for line in done.stdout.splitlines())
    assert len(of_wiring) <= MOST_OF_WIRING
    assert len(with_model) <= MOST_WITH_MODEL
    assert {f"{FAMILIES}.stable_diffusion", "pentimento.diffusion.schedulers.ddim"} <= {*with_model} - {*of_wiring}
    assert UNUSED & {*with_model} == set()
