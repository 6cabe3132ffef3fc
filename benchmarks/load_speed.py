"""Time cold loads of a base network, a ControlNet and a LoRA, verification included, against diffusers' loaders.

    python -m benchmarks.load_speed

Random weights of 0.8 GB (UNet), 0.3 GB (ControlNet) and 0.2 GB (LoRA), half precision. The remote store answers after
20 ms and sends 60 MB/s on each connection (`suites/slow_objects.py`). From it, diffusers' side downloads a file by one
stream and calls `from_pretrained` (`load_lora_adapter`); ours fetches verified blocks through the component store and
builds the network, or puts the LoRA into the weights. From the local disk, without the kernel's cache, both load the
base in the stored precision and in float32; converted weights take fresh memory, or that of the load before, as at a
worker's change of model. A load ends when every page of the weights is in memory. The sides alternate; in the first
round their weights are compared. MLoRA: base 22.6 → 7.2 s, ControlNet 5.1 → 1.9 s, LoRA 4.6 → 1.2 s.

Two more rows: the seconds to read the base's file, which no loader can save; and the bytes of host buffers that loads
leave unused, for 200 changes between published architectures, without loading.
"""

import gc
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from urllib.request import urlopen

import torch
from diffusers import ControlNetModel, UNet2DConditionModel
from safetensors.torch import load_file

from benchmarks.suites.slow_objects import slow_objects
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.runs.measure import Figure, Options, at_most, informative, measured, parse_options, publish
from pentimento.diffusion.host_memory import HostBuffers, host_buffers
from pentimento.diffusion.loras import WeightedLora, layers_of
from pentimento.diffusion.loras.files import LoraFile
from pentimento.diffusion.loras.patching import WeightPatch
from pentimento.diffusion.loras.reading import lora_of
from pentimento.diffusion.weights import load_network, quiet_loaders
from pentimento.domain.generation import ObjectReference
from pentimento.files.file_sums import FileSum, FileSums, read_blocks
from pentimento.policies.components import Utility
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.components.disk import HeldBlob
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import digest_of

CPU, HALF = torch.device("cpu"), torch.float16
WIDTHS = (224, 448, 896, 896)
QUICK_WIDTHS = (32, 64)
QUICK_BLOCKS = {
    "unet": {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    },
    "controlnet": {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")},
}
CLASSES = {"unet": UNet2DConditionModel, "controlnet": ControlNetModel}
WEIGHTS = "diffusion_pytorch_model.safetensors"
LORA = "pytorch_lora_weights.safetensors"
LORA_RANK, LORA_ENDS = 96, ("to_q", "to_k", "to_v", "conv1", "conv2")
FAMILY = "stable_diffusion"
# Seconds of our load ÷ diffusers', at most: 70 % saved where remote or converted, and never slower.
SAVED, NEVER_SLOWER = 0.3, 1.0
_PAGE_BYTES = 4096
# Millions of parameters of denoiser, text encoders and autoencoder: Stable Diffusion 1.5 and 2.1, SDXL, SDXL's refiner,
# Stable Diffusion 3 and 3.5 Medium without T5.
ARCHITECTURES = (
    (860, 123, 84),
    (866, 340, 84),
    (2567, 123, 695, 84),
    (2342, 695, 84),
    (2085, 124, 695, 84),
    (2469, 124, 695, 84),
)
CHANGES = 200
Pair = tuple[float, float]


@dataclass(frozen=True)
class Made:
    """Hold the files of a run: networks by name in `folder`, and each file as an object of `served`."""

    folder: Path
    served: Path
    references: dict[str, ObjectReference]


def make(folder: Path, quick: bool) -> Made:
    """Write random networks and a LoRA, and register them as a controller does."""
    torch.manual_seed(0)
    (served := folder / "served").mkdir()
    references = {}
    for name, network_class in CLASSES.items():
        shape: dict[str, Any] = {"block_out_channels": WIDTHS, "cross_attention_dim": 768, "attention_head_dim": 8}
        if quick:
            shape = {"block_out_channels": QUICK_WIDTHS, "cross_attention_dim": 32, "attention_head_dim": 4}
            shape |= QUICK_BLOCKS[name]
        network = network_class(**shape).half()
        network.save_pretrained(folder / name)
        if name == "unet":
            factors = random_factors(layers_of(FAMILY, {"unet": network}), rank=LORA_RANK, ends=LORA_ENDS)
            write_diffusers_lora(folder, factors, alpha=8.0)
        references[name] = register(folder / name / WEIGHTS, served / name)
    references["lora"] = register(folder / LORA, served / "lora")
    return Made(folder, served, references)


def register(file: Path, served: Path) -> ObjectReference:
    found = FileSums().of(file)
    served.symlink_to(file)
    hashes = b"".join(map(bytes.fromhex, found.blocks))
    served.with_name(f"{served.name}-blocks").write_bytes(hashes)
    return ObjectReference(served.name, found.digest, found.size_bytes, digest_of(hashes))


class ColdLoads:
    """Load components, each call from a cold start."""

    def __init__(self, made: Made, address: str) -> None:
        self._made = made
        self._address = address
        self._remote = ObjectRemote(open_objects(f"s3://bucket?endpoint={address}"))
        self._base: Any = None

    def ours_remote(self, name: str, folder: Path) -> Any:
        store = ComponentStore(folder, 2**40, 0, Utility)
        reference = self._made.references[name]
        if name != "lora":
            return store.load(reference, self._remote, lambda held: self._built(name, held, folder))
        data, found = store.read(reference, self._remote)
        unet = self._base
        file = LoraFile("lora", data, sha256=found.sha256)
        WeightPatch(unet, "unet").hold((WeightedLora(lora_of(file, layers_of(FAMILY, {"unet": unet}), HALF), 1.0),))
        return unet

    def theirs_remote(self, name: str, folder: Path) -> Any:
        target = folder / (LORA if name == "lora" else WEIGHTS)
        with urlopen(f"{self._address}/bucket/{name}") as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file, 2**20)
        if name == "lora":
            self._base.load_lora_adapter(load_file(target), adapter_name="it", prefix="unet")
            self._base.fuse_lora()
            return self._base
        shutil.copyfile(self._made.folder / name / "config.json", folder / "config.json")
        return CLASSES[name].from_pretrained(folder, torch_dtype=HALF)

    def ours_local(self, dtype: torch.dtype, sums: FileSums) -> Any:
        return network_of(self._made.folder / "unet", "unet", dtype, sums)

    def theirs_local(self, dtype: torch.dtype) -> Any:
        return UNet2DConditionModel.from_pretrained(self._made.folder / "unet", torch_dtype=dtype)

    def with_base(self) -> None:
        """Load the network that LoRAs change."""
        self._base = self.theirs_local(HALF)

    def without_base(self) -> None:
        self._base = None

    def _built(self, name: str, held: HeldBlob, folder: Path) -> Any:
        """Build a network of a held component, with the configuration next to a link to it."""
        (directory := folder / "network").mkdir()
        shutil.copyfile(self._made.folder / name / "config.json", directory / "config.json")
        (directory / WEIGHTS).symlink_to(held.path)
        return network_of(directory, name, HALF, known(directory / WEIGHTS, held.sum))


def known(file: Path, found: FileSum) -> FileSums:
    sums = FileSums()
    sums.note(file, found, sums.key(file))
    return sums


def network_of(directory: Path, name: str, dtype: torch.dtype, sums: FileSums) -> Any:
    return load_network(directory, directory.iterdir(), CLASSES[name].__name__, CPU, dtype, sums)


def drop_cache(folder: Path) -> None:
    """Remove the files of a folder from the kernel's cache. It keeps pages that a network maps, so none may be left."""
    gc.collect()
    os.sync()
    for path in folder.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if kept := cached_bytes(path):
            raise SystemExit(f"{path.name}: the kernel still holds {kept} bytes of it")


def cached_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the kernel's cache, by util-linux's `fincore`."""
    return int(subprocess.check_output(["fincore", "--bytes", "--noheadings", "--output", "RES", path], text=True))


def timed(load: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds until every page of the weights is in memory: diffusers' side maps files."""
    began_s = time.perf_counter()
    loaded = load()
    for tensor in loaded.state_dict().values():
        tensor.view(-1).view(torch.uint8)[::_PAGE_BYTES].sum()
    return time.perf_counter() - began_s, loaded


def pair(
    ours: Callable[[], Any], theirs: Callable[[], Any], number: int, prepare: Callable[[], None], is_equal: bool = True
) -> Pair:
    """Return the seconds of both sides, which begin in turns. In the first round the weights are compared."""
    sides = {"ours": ours, "theirs": theirs}
    seconds, digests = {}, set()
    for side in sorted(sides, reverse=number % 2 == 1):
        prepare()
        gc.collect()
        seconds[side], loaded = timed(sides[side])
        if is_equal and number == 0:
            digests.add(sum(float(tensor.double().abs().sum()) for tensor in loaded.state_dict().values()))
        del loaded
    if len(digests) > 1:
        raise SystemExit(f"the sides loaded different weights: {digests}")
    return seconds["ours"], seconds["theirs"]


def rounds_of(made: Made, sides: ColdLoads, count: int) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    sums = FileSums()
    sums.of(made.folder / "unet" / WEIGHTS)
    for number in range(count):
        for row, dtype in (("stored precision", HALF), ("converted", torch.float32), ("again", torch.float32)):

            def prepare(row: str = row) -> None:
                drop_cache(made.folder)
                if row != "again":
                    host_buffers(is_read_by_device=False).drop_idle()

            seconds = pair(
                lambda dtype=dtype: sides.ours_local(dtype, sums),  # type: ignore[misc]
                lambda dtype=dtype: sides.theirs_local(dtype),  # type: ignore[misc]
                number,
                prepare,
            )
            found.setdefault(f"local, {row}", []).append(seconds)
        for name in ("unet", "controlnet", "lora"):
            found.setdefault(f"remote, {name}", []).append(remote_pair(sides, name, number))
        sides.without_base()
    return found


def remote_pair(sides: ColdLoads, name: str, number: int) -> Pair:
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        return pair(
            lambda: sides.ours_remote(name, Path(ours)),
            lambda: sides.theirs_remote(name, Path(theirs)),
            number,
            sides.with_base if name == "lora" else sides.without_base,
            is_equal=name != "lora",  # fused in other orders: equal up to rounding
        )


TITLES = {
    "remote, unet": ("base from a remote store", SAVED),
    "remote, controlnet": ("ControlNet from a remote store", SAVED),
    "remote, lora": ("LoRA from a remote store", SAVED),
    "local, converted": ("base from disk, converted to float32", SAVED),
    "local, again": ("base from disk, converted into the memory of the last load", SAVED),
    "local, stored precision": ("base from disk, stored precision", NEVER_SLOWER),
}


def figures_of(found: dict[str, list[Pair]]) -> list[Figure]:
    figures = [
        measured(f"{title}: ours / diffusers'", [ours / theirs for ours, theirs in found[row]], median, at_most(limit))
        for row, (title, limit) in TITLES.items()
    ]
    for row, (title, _) in TITLES.items():
        for place, side in enumerate(("ours", "diffusers'")):
            seconds = [one[place] for one in found[row]]
            figures.append(measured(f"{title}: {side}", seconds, median, informative("s")))
    return figures


def read_s(made: Made) -> float:
    """Return the seconds to read the base's file from disk into one buffer."""
    drop_cache(made.folder)
    began_s = time.perf_counter()
    for _ in read_blocks(made.folder / "unet" / WEIGHTS, None):
        pass
    return time.perf_counter() - began_s


def buffer_figures() -> list[Figure]:
    """Play changes of model on buffers that are never written: pages without content take no memory."""
    buffers, chosen, mebi = HostBuffers(is_read_by_device=False), Random(3), 2**20
    asked = wasted = reused = 0
    for _ in range(CHANGES):
        held = []
        for millions in chosen.choice(ARCHITECTURES):
            before = buffers.idle_bytes
            held.append(buffers.take(millions * mebi))
            asked += millions * mebi
            reused += millions * mebi if buffers.idle_bytes < before else 0
        wasted += buffers.lent_bytes - sum(memory.nbytes for memory in held)
    return [
        Figure("bytes of buffers beyond those of the weights", wasted / asked, informative()),
        Figure("bytes of weights in buffers of earlier loads", reused / asked, informative()),
    ]


def run(options: Options) -> int:
    torch.set_num_threads(2)
    quiet_loaders()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "none")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "none")
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), options.quick)
        with slow_objects(made.served) as address:
            found = rounds_of(made, ColdLoads(made, address), 1 if options.quick else 6)
        reading = measured("reading the base's file", [read_s(made) for _ in range(4)], median, informative("s"))
        sizes = {f"{name}_mb": one.size_bytes / 1e6 for name, one in made.references.items()}
    figures = [*figures_of(found), reading, *buffer_figures()]
    return publish(options, figures, notes={**sizes, "connections_mb_s": 60.0, "delay_ms": 20.0})


if __name__ == "__main__":
    raise SystemExit(run(parse_options("load_speed", __doc__)))
