"""What measures for minutes says first where its files have no place, and where its encoder measures no quality."""

from pathlib import Path
from typing import Any

import pytest

from pentimento.api.embedder.v1.embedder_service_pb2 import GetInfoRequest, GetInfoResponse
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import (
    EmbedderServiceServicer,
    add_EmbedderServiceServicer_to_server,
)
from pentimento.domain.errors import InvalidArgument
from pentimento.files.folders import make_folder
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.supervisor.models import find_model
from services.unet_worker import handover_profile, lora_bound, profile, selector_profile, thinning_profile

MODEL = str(find_model("tiny-light").path)
# Of a command, what it needs beside a model and prompts.
STUDIES = {
    handover_profile: ("--light-model", MODEL),
    selector_profile: (),
    thinning_profile: (),
}


@pytest.mark.parametrize("command", [profile, lora_bound])
async def test_a_file_in_a_folder_that_is_not_there(command: Any, tmp_path: Path) -> None:
    needed = ("--loras", str(tmp_path), "--prompts", __file__) if command is lora_bound else ()

    with pytest.raises(InvalidArgument, match="out: must be in a folder that exists"):
        await command.main(["--model", MODEL, *needed, "--out", str(tmp_path / "nowhere" / "found.json")])


@pytest.mark.parametrize("command", STUDIES)
async def test_a_folder_that_cannot_be_made(command: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("a circle\n")
    needed = ("--prompts", str(prompts), "--embedder-address", "unix:/nobody", *STUDIES[command])

    with pytest.raises(InvalidArgument, match="out: must be a folder"):
        await command.main(["--model", MODEL, *needed, "--out", str(prompts)])


def test_a_folder_is_made_with_those_that_it_is_in(tmp_path: Path) -> None:
    make_folder("out", tmp_path / "a" / "b")
    make_folder("out", tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").is_dir()


class SentenceEmbedder(EmbedderServiceServicer):
    """An embedder of texts; a call for an embedding would be answered UNIMPLEMENTED."""

    async def GetInfo(self, request: GetInfoRequest, context: object) -> GetInfoResponse:
        return GetInfoResponse(encoder_name="all-minilm-l6-v2", encoder_digest="sha256:x", embeds_images=False)


@pytest.mark.parametrize("command", STUDIES)
async def test_bench_text_encoder_is_rejected_before_first_image(command: Any, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/e"
    server = RpcServer(RpcServerSettings(listen=(address,)), "embedder")
    server.add(add_EmbedderServiceServicer_to_server, SentenceEmbedder(), "pentimento.api.embedder.v1.EmbedderService")
    (tmp_path / "p.txt").write_text("a circle\n")
    needed = ("--prompts", str(tmp_path / "p.txt"), "--embedder-address", address, *STUDIES[command])
    await server.start()

    with pytest.raises(InvalidArgument, match=r"encoder: must name an encoder that embeds images too.*all-minilm"):
        await command.main(["--model", MODEL, *needed, "--out", str(tmp_path / "out")])

    await server.stop()
