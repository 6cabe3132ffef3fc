"""A worker process with a directory of LoRAs, asked for the final latents of pictures with them."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio
from PIL import Image
from torch import Tensor

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.errors import domain_errors
from pentimento.diffusion.loras import digest_lora, lora_file_in
from pentimento.domain.generation import Attempt, FromNoise, LoraSelection, Route
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.testing.diffusers_reference import Case
from pentimento.testing.lora_reference import WeightedFile
from pentimento.testing.worker_process import worker_process
from pentimento.testing.worker_under_test import await_serving, spec_of
from pentimento.wire.generation import attempt_to_proto, route_to_proto, spec_to_proto
from pentimento.wire.tensors import tensor_from_proto
from pentimento.wire.torch_tensors import tensor_from_wire


class StyledWorker:
    """The worker at an address, and what its LoRAs are called there, by their files."""

    def __init__(self, address: str, names: dict[Path, LoraSelection]) -> None:
        self._address = address
        self._names = names
        self._numbers = itertools.count(1)

    def latents(self, case: Case, files: Sequence[WeightedFile], *, beside_a_plain_one: bool = False) -> Tensor:
        """Return the final latents (1, channels, height, width) of a picture with these LoRAs: alone, or together with
        one without any. Raises what the call fails with."""
        wanted = [files, ()] if beside_a_plain_one else [files]
        return asyncio.run(self._painted(case, wanted))[0]

    async def _painted(self, case: Case, wanted: Sequence[Sequence[WeightedFile]]) -> list[Tensor]:
        async with open_channel(self._address, RpcChannelSettings()) as channel:
            held = (await await_serving(channel)).held
            return list(await asyncio.gather(*(self._picture(channel, held, case, files) for files in wanted)))

    async def _picture(
        self, channel: grpc.aio.Channel, held: pb.HeldModel, case: Case, files: Sequence[WeightedFile]
    ) -> Tensor:
        number = next(self._numbers)
        image = Image.new("RGB", (held.default_width_px, held.default_height_px))
        loras = tuple(replace(self._names[path], scale=weight) for path, weight in files)
        request = pb.ExecuteRequest(
            attempt=attempt_to_proto(Attempt(f"golden-{number}", 1, number, "golden", 1, "golden")),
            spec=spec_to_proto(replace(spec_of(case, held, image), loras=loras)),
            route=route_to_proto(Route("golden", FromNoise(), held.model, held.model_digest)),
            worker_generation=held.worker_generation,
            return_latents=True,
        )
        with domain_errors():
            answers = [answer async for answer in UnetWorkerServiceStub(channel).Execute(request)]
        return tensor_from_wire(tensor_from_proto(answers[-1].result.final_latents))


@contextmanager
def styled_worker(checkpoint: Path, files: Sequence[Path]) -> Iterator[StyledWorker]:
    """Start a worker with copies of these LoRAs, each in a folder with what lies beside it; stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as name:
        folder = Path(name)
        names = {path: _copied(path, folder / f"lora-{number}") for number, path in enumerate(dict.fromkeys(files))}
        flags = ("--adapters-dir", str(folder), "--max-batch", "2", "--warm-up-s", "0", "--dtype", "float32")
        with worker_process(checkpoint, *flags) as address:
            yield StyledWorker(address, names)


def _copied(path: Path, folder: Path) -> LoraSelection:
    folder.mkdir()
    for file in {path, path.parent / "adapter_config.json"}:
        if file.is_file():
            shutil.copy(file, folder / file.name)
    found = lora_file_in(folder)
    assert found is not None
    return LoraSelection(folder.name, digest=digest_lora(found))
