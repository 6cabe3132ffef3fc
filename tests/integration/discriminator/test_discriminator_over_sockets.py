"""Images scored by a real network over a socket: good and bad calls at the same time."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch

from lab.emulation.png_text import flat_png
from pentimento.clients.controller import ControllerClient
from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from pentimento.images.decoding import decode
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire as wire_controller
from services.discriminator import network_scorer
from services.discriminator.settings import DiscriminatorSettings
from services.discriminator.wiring import wire
from tests.support.torch_threads import torch_threads

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "zoo" / "weights" / "tiny-discriminator"
CASCADE = "tiny-light>tiny-heavy"
READING, READER = "reads>prompts", SHIPPED.parent / "tiny-router"


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[DiscriminatorClient]:
    """Return a client of a process with three cascades."""
    address, channels = f"unix:{directory / 'd'}", RpcChannelSettings()
    process = wire(
        DiscriminatorSettings(
            RpcServerSettings(listen=(address,)),
            channels,
            cascades=(f"{CASCADE}={SHIPPED}", f"other>pair={SHIPPED}", f"{READING}={READER}"),
        )
    )
    await process.server.start()
    try:
        await process.warm()
        async with open_channel(address, channels) as channel:
            yield DiscriminatorClient(channel)
    finally:
        await process.drain()
        await process.server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client() -> AsyncIterator[DiscriminatorClient]:
    """Return a client of the process that all tests share."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as directory:
        async with serving(Path(directory)) as shared:
            yield shared


def image_of(number: int) -> bytes:
    return flat_png(64, 64, (number * 9 % 256, 200 - number * 7 % 200, 90))


def expected(number: int) -> float:
    network = open_discriminator(SHIPPED)
    return network.confidences([decode(image_of(number), "image", network.pixels)])[0]


@pytest.fixture
def three_threads() -> Iterator[None]:
    with torch_threads(3):
        yield


async def test_foresee_reads_prompts_on_the_configured_number_of_threads(three_threads: None, tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        await client.foresee(READING, prompt(3))

        # This thread reads them.
        assert torch.get_num_threads() == 1


async def test_score_gives_each_image_its_own_confidence(client: DiscriminatorClient) -> None:
    images = [((f"r{number}", number + 1), image_of(number)) for number in range(6)]

    found = await client.score(CASCADE, images)

    assert found == {key: pytest.approx(expected(key[1] - 1), abs=1e-5) for key, _ in images}


async def test_score_rejects_a_discriminator_with_another_digest(client: DiscriminatorClient) -> None:
    image, own = ("r", 1), open_discriminator(SHIPPED).digest

    with pytest.raises(FailedPrecondition) as other:
        await client.score(CASCADE, [(image, image_of(0))], digest="sha256:" + "0" * 64)
    with pytest.raises(FailedPrecondition) as foreseen:
        await client.foresee(READING, prompt(3), digest=own)
    found = await client.score(CASCADE, [(image, image_of(0))], digest=own)

    assert [raised.value.reason for raised in (other, foreseen)] == ["OTHER_DISCRIMINATOR"] * 2
    assert list(found) == [image]


async def test_score_answers_calls_of_two_cascades_at_once(client: DiscriminatorClient) -> None:
    calls = [
        client.score(cascade, [((f"{cascade} {number}", 1), image_of(number))])
        for number in range(8)
        for cascade in (CASCADE, "other>pair")
    ]

    before = (await client.status()).scored_count

    answers = await asyncio.gather(*calls)

    assert sum(map(len, answers)) == 16
    assert (await client.status()).scored_count - before == 16


async def test_status_names_the_cascades(client: DiscriminatorClient) -> None:
    assert list((await client.status()).cascades) == [CASCADE, "other>pair", READING]
    assert list((await client.status()).prompt_cascades) == [READING]


def prompt(number: int) -> Embedding:
    vector = np.random.default_rng(number).normal(size=128).astype(np.float32)
    digest = json.loads((READER / "prompt_head.json").read_text())["encoder_digest"]
    return Embedding((vector / np.linalg.norm(vector)).astype("<f4").tobytes(), 128, digest)


async def test_score_reads_the_prompt_of_each_image(
    client: DiscriminatorClient,
) -> None:
    network = open_discriminator(READER)
    assert network.head is not None
    images = [((f"r{number}", 1), image_of(1)) for number in range(6)]
    pixels = [decode(image_of(1), "image", network.pixels)] * 6
    embedded = [network.head.prompt("prompt", prompt(number)) for number in range(6)]

    found = await client.score(READING, images, prompts={(f"r{number}", 1): prompt(number) for number in range(6)})

    assert list(found.values()) == pytest.approx(network.confidences_with(pixels, embedded), abs=1e-5)
    assert len({round(confidence, 4) for confidence in found.values()}) == 6


async def test_foresee_predicts_from_the_prompt_alone(
    client: DiscriminatorClient,
) -> None:
    head = open_discriminator(READER).head
    assert head is not None

    for threshold in (None, 0.0, 1.0):
        told = await client.foresee(READING, prompt(3), threshold=threshold)

        expected = head.foresee([head.prompt("p", prompt(3))], threshold)[0]
        assert told.probability == pytest.approx(expected.probability, abs=1e-6)
        assert (told.verdict, told.threshold) == (expected.verdict, expected.threshold)
    with pytest.raises(InvalidArgument, match=r"threshold.* must be 0 to 1, got 1\.5"):
        await client.foresee(READING, prompt(3), threshold=1.5)


async def test_missing_prompt_or_other_encoder_is_refused(client: DiscriminatorClient) -> None:
    with pytest.raises(InvalidArgument, match=r"images\[0\]\.prompt"):
        await client.score(READING, [(("r", 1), image_of(1))])
    with pytest.raises(FailedPrecondition, match="is of encoder sha256:other"):
        await client.foresee(READING, replace(prompt(1), encoder_digest="sha256:other"))
    with pytest.raises(FailedPrecondition, match="reads images only"):
        await client.foresee(CASCADE, prompt(1))


async def test_score_of_an_unknown_cascade_names_the_known_ones(client: DiscriminatorClient) -> None:
    with pytest.raises(NotFound, match=r"'a>b'; there are tiny-light>tiny-heavy, other>pair, reads>prompts"):
        await client.score("a>b", [(("r", 1), image_of(1))])


async def test_score_names_an_undecodable_image_and_answers_other_calls(client: DiscriminatorClient) -> None:
    bad = client.score(CASCADE, [(("a", 1), image_of(1)), (("b", 1), image_of(2)[:60])])
    good = client.score(CASCADE, [(("c", 1), image_of(3))])

    refused, answered = await asyncio.gather(bad, good, return_exceptions=True)

    assert isinstance(refused, InvalidArgument) and "images[1].image" in str(refused)
    assert answered == {("c", 1): pytest.approx(expected(3), abs=1e-5)}


async def test_score_refuses_more_images_than_may_wait(
    client: DiscriminatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_scorer, "QUEUE_LIMIT", 40)
    images = [((f"r{number}", 1), image_of(number)) for number in range(30)]

    answers = await asyncio.gather(*(client.score(CASCADE, images) for _ in range(4)), return_exceptions=True)

    assert any(isinstance(answer, ResourceExhausted) for answer in answers)
    assert any(isinstance(answer, dict) and len(answer) == 30 for answer in answers)


@pytest.mark.parametrize(
    ("cascades", "message"),
    [
        ("light>heavy", "--cascades must be LIGHT>HEAVY=DIR or a registry, got 'light>heavy'"),
        ("light=DIR", "--cascades must be LIGHT>HEAVY=DIR"),
        ("a>b=x,a>b=y", "--cascades names a>b twice"),
        ("a>b=/nowhere", "/nowhere"),
    ],
)
def test_start_with_wrong_cascades_ends_in_one_line(cascades: str, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.discriminator", "--listen", f"unix:{tmp_path / 'd'}"]

    ended = subprocess.run([*command, "--cascades", cascades], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert ended.returncode != 0
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_start_with_the_discriminator_of_other_models_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "prompt_head.json").write_text(json.dumps({"cascade": "sd-turbo>sdxl"}))
    command = [sys.executable, "-m", "services.discriminator", "--listen", f"unix:{tmp_path / 'd'}"]

    ended = subprocess.run(
        [*command, "--cascades", f"a>b={tmp_path}"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert ended.returncode != 0
    assert "was trained for sd-turbo>sdxl, not for a>b" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_start_with_changed_weights_ends_before_torch_loads(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "tiny-discriminator")
    shutil.copy(SHIPPED.parent / "registry.json", tmp_path)
    weights = tmp_path / "tiny-discriminator" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    command = [sys.executable, "-X", "importtime", "-m", "services.discriminator", "--listen", f"unix:{tmp_path / 'd'}"]

    ended = subprocess.run(
        [*command, "--cascades", f"a>b={weights.parent}"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert ended.returncode != 0
    assert "its digest is sha256:" in ended.stderr
    assert imported(ended.stderr) & {"torch", "services.discriminator.settings"} == {"services.discriminator.settings"}


def imported(told: str) -> set[str]:
    """Return the modules in the output of `-X importtime`, complete or not."""
    return {line.rpartition("|")[2].strip() for line in told.splitlines()}


async def test_registration_reports_the_seconds_of_a_pass(tmp_path: Path) -> None:
    at_controller, at_scorer, channels = f"unix:{tmp_path / 'c'}", f"unix:{tmp_path / 's'}", RpcChannelSettings()
    controller = wire_controller(ControllerSettings(RpcServerSettings(listen=(at_controller,))))
    chance = Path(shutil.copytree(READER, tmp_path / "chance"))
    record = json.loads((chance / "prompt_head.json").read_text())
    (chance / "prompt_head.json").write_text(json.dumps(record | {"auroc": [0.52, 0.46, 0.58]}))
    cascades = (f"{CASCADE}={SHIPPED}", f"{READING}={chance}")
    mine = DiscriminatorSettings(
        RpcServerSettings(listen=(at_scorer,)), channels, cascades, controller_address=at_controller
    )
    scorer = wire(mine)
    async with AsyncExitStack() as stack:
        for process in (controller, scorer):
            await process.server.start()
            stack.push_async_callback(process.server.stop)
            await process.warm()
            stack.push_async_callback(process.drain)
        channel = await stack.enter_async_context(open_channel(at_controller, channels))
        assert scorer.registration is not None
        while not (replicas := (await ControllerClient(channel).fleet()).replicas):
            scorer.registration.report_soon()

    (status,) = replicas
    assert [cost.model for cost in status.replica.costs] == [CASCADE, READING]
    assert all(size == 1 and taken_s > 0.0 for cost in status.replica.costs for size, taken_s in cost.run_s)
    reader = open_discriminator(chance)
    assert reader.head is not None
    measured = [(one.discriminator, one.discriminator_digest) for one in status.replica.deferrals]
    assert measured == [(READING, reader.digest)]
    (curve,) = status.replica.deferrals
    assert tuple(zip(curve.thresholds, curve.shares, strict=True)) == reader.head.record.deferral
    assert curve.uninformative == "its AUROC for 'as good' is 0.52 [0.46, 0.58], and 0.5 is chance"
