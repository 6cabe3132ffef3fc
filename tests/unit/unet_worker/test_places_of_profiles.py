"""Measurements of minutes first report missing places of files, and encoders that measure no quality."""

from pathlib import Path

import pytest

from pentimento.api.embedder.v1.embedder_service_pb2 import GetInfoRequest, GetInfoResponse
from pentimento.api.embedder.v1.embedder_service_pb2_grpc import (
    EmbedderServiceServicer,
    add_EmbedderServiceServicer_to_server,
)
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.supervisor.models import find_model
from services.unet_worker.profiling.__main__ import main

MODEL = str(find_model("tiny-light").path)
# Arguments of a kind in addition to a model, prompts and the embedder.
STUDIES = {"handover": ("--light", MODEL), "reuse": (), "steps": ()}


@pytest.mark.parametrize("kind", ["cost", "lora", *STUDIES])
async def test_profile_is_rejected_without_folder_for_file(kind: str, tmp_path: Path) -> None:
    needed = {"cost": (), "lora": ("--loras", str(tmp_path), "--prompts", __file__)}.get(
        kind, ("--prompts", __file__, "--embedder-address", "unix:/none", *STUDIES.get(kind, ()))
    )

    with pytest.raises(InvalidArgument, match="out: must be in a folder that exists"):
        await main([kind, "--model", MODEL, *needed, "--out", str(tmp_path / "nowhere" / "found.json")])


@pytest.mark.parametrize(
    ("kind", "flags", "named"),
    [
        ("reuse", (), "prompts"),
        ("steps", ("--prompts", __file__), "embedder_address"),
        ("handover", ("--prompts", __file__, "--embedder-address", "unix:/none"), "light"),
        ("lora", ("--prompts", __file__), "loras"),
    ],
)
async def test_profile_names_missing_flag(kind: str, flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{named}: must be given for a profile of kind {kind}"):
        await main([kind, "--model", MODEL, *flags])


async def test_profile_is_rejected_for_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")

    with pytest.raises(InvalidArgument, match=r"out: .*other\.json: profiles: must be a JSON object"):
        await main(["cost", "--model", MODEL, "--out", str(tmp_path / "other.json")])
    with pytest.raises(InvalidArgument, match="resume: must not be given for costs"):
        await main(["cost", "--model", MODEL, "--resume"])


async def test_profile_of_unknown_kind_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="kind: must be one of cost, reuse, steps, features, handover, lora"):
        await main(["luck", "--model", MODEL])


class SentenceEmbedder(EmbedderServiceServicer):
    """An embedder of texts; a call for an embedding would be answered UNIMPLEMENTED."""

    async def GetInfo(self, request: GetInfoRequest, context: object) -> GetInfoResponse:
        return GetInfoResponse(encoder_name="all-minilm-l6-v2", encoder_digest="sha256:x", embeds_images=False)


@pytest.mark.parametrize("kind", STUDIES)
async def test_text_encoder_is_rejected_before_first_image(kind: str, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/e"
    server = RpcServer(RpcServerSettings(listen=(address,)), "embedder")
    server.add(add_EmbedderServiceServicer_to_server, SentenceEmbedder(), "pentimento.api.embedder.v1.EmbedderService")
    (tmp_path / "p.txt").write_text("a circle\n")
    needed = ("--prompts", str(tmp_path / "p.txt"), "--embedder-address", address, *STUDIES[kind])
    await server.start()

    with pytest.raises(InvalidArgument, match=r"encoder: must name an encoder that embeds images too.*all-minilm"):
        await main([kind, "--model", MODEL, *needed, "--out", str(tmp_path / "out.json")])

    await server.stop()
