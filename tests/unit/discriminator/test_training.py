"""Train a discriminator on kept pairs: their selection, and the written files."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.devices.choices import DeviceChoice
from pentimento.diffusion.discriminators import open_discriminator
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.online_quality import ComparedPair
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.pair_keys import pair_key
from pentimento.wire.codec import to_bytes
from services.discriminator.training import __main__ as training
from services.discriminator.training import fitting
from services.discriminator.training.__main__ import train
from services.discriminator.training.pairs import FOLDS, as_tensors, fold_of, read_pairs
from services.discriminator.training.settings import SIZES_PX, NetworkChoice, TrainingSettings
from tests.support.refusals import wrong_refusals

COUNT, WIDTH, CASCADE = 384, 8, "light>heavy"


def flat(colour: Sequence[int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32), tuple(colour)).save(file, "png")
    return file.getvalue()


def pair_of(number: int, as_good: bool | None = None) -> ComparedPair:
    """Return a pair; the prompt's first number decides whether light's image is as good, and then shows the heavy
    image's colour."""
    rng = np.random.default_rng(number)
    prompt = rng.normal(size=WIDTH)
    prompt /= np.linalg.norm(prompt)
    good = bool(prompt[0] > 0.0) if as_good is None else as_good
    colour = rng.integers(0, 256, 3).tolist()
    embedding = Embedding(prompt.astype("<f4").tobytes(), WIDTH, "sha256:encoder")
    light = flat(colour if good else rng.integers(0, 256, 3).tolist())
    scores = (0.5, 0.4) if good else (0.3, 0.4)
    return ComparedPair(
        CASCADE, "sha256:l", "sha256:h", embedding, *scores, rng.random(), not good, 0.5, light, flat(colour)
    )


def stored(store: ObjectStore, pairs: Sequence[ComparedPair], since_s: float = 0.0) -> None:
    for number, pair in enumerate(pairs):
        data = to_bytes(pair, pb.ComparedPair)
        store.put(pair_key(pair.cascade, "tenant", since_s + number, data), data, durable=False)


@pytest.fixture(scope="module")
def objects_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = (tmp_path_factory.mktemp("objects") / "objects").as_uri()
    stored(open_objects(url), [pair_of(number) for number in range(COUNT)])
    return url


def settings(objects_url: str, out: Path, **changes: Any) -> TrainingSettings:
    given: dict[str, Any] = {
        "cascade": "light,heavy",
        "objects_url": objects_url,
        "out": out,
        "network": NetworkChoice.NARROW,
        "steps": 3,
        "device": DeviceChoice.CPU,
    }
    return TrainingSettings(**(given | changes))


def test_training_writes_calibrated_directory_with_ranking(
    objects_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES_PX, NetworkChoice.NARROW, 32)
    monkeypatch.setattr(training, "BATCH", 16)
    fitted = train(settings(objects_url, tmp_path / "mine"))

    found = open_discriminator(tmp_path / "mine")
    assert found.head is not None
    record = found.head.record
    assert (record.encoder_digest, record.cascade) == ("sha256:encoder", "light>heavy")
    assert 0.0 < record.deferral[25][1] < 1.0
    assert set(fitted.rankings) == {
        fitting.NEW,
        fitting.PROMPT,
        fitting.CLIP_SCORE,
        fitting.IN_SERVICE,
        fitting.RANDOM,
    }
    assert fitted.rankings[fitting.CLIP_SCORE].value == 1.0
    assert fitted.rankings[fitting.NEW].value > 0.75
    assert 0.3 < fitted.rankings[fitting.RANDOM].value < 0.7
    assert record.auroc[1] > 0.5
    assert f"{fitted.rankings[fitting.NEW].value:.3f}" in capsys.readouterr().out

    again = train(settings(objects_url, tmp_path / "again", steps=0, start=tmp_path / "mine"))

    assert again.rankings[fitting.NEW].value == pytest.approx(fitted.rankings[fitting.NEW].value, abs=0.1)


def test_read_pairs_takes_newest_of_present_models(tmp_path: Path) -> None:
    store = open_objects((tmp_path / "objects").as_uri())
    newest = [pair_of(number) for number in range(6)]
    stored(store, [replace(pair_of(7), light_digest="sha256:former"), replace(pair_of(8), cascade="other>heavy")])
    stored(store, newest, since_s=10.0)
    store.put(pair_key(CASCADE, "tenant", 30.0, b"no pair"), b"no pair")

    assert read_pairs(store, CASCADE, 1, 4) == newest[:1:-1]
    assert len(read_pairs(store, CASCADE, 1, 100)) == 6
    with pytest.raises(FailedPrecondition, match=r"light>heavy has 6 compared pairs .* training takes 7") as caught:
        read_pairs(store, CASCADE, 7, 100)
    assert caught.value.reason == "TOO_FEW_PAIRS"


def test_as_tensors_weighs_by_share_and_keeps_prompts_together() -> None:
    pairs = [replace(pair_of(number), sampled_share=share) for number, share in ((1, 0.25), (1, 1.0), (2, 0.02))]
    undecodable = replace(pair_of(3), heavy=b"no image")

    found = as_tensors([*pairs, undecodable], 16)

    assert found.weights.tolist() == pytest.approx([4.0, 1.0, 50.0])
    assert found.folds[0] == found.folds[1]
    assert found.light.shape == (3, 3, 16, 16)
    assert {fold_of(pair_of(number)) for number in range(100)} == set(range(FOLDS))


def test_rankings_count_rows_by_their_weights() -> None:
    tensors = as_tensors([pair_of(number) for number in range(64)], 16)
    good = tensors.light_scores >= tensors.heavy_scores
    wrong = good & (tensors.prompts[:, 1] > 0)
    data = fitting.HeadData(
        tensors.light[:, :, 0, 0].float(),
        tensors.prompts,
        good.double(),
        0.5 * good.double() + 0.25,
        1.0 + 1e6 * wrong.double(),
    )
    head = fitting.HeadNetwork(fitting.HeadShape(3, WIDTH, 2)).eval()

    found = fitting.rankings_of(head, data, good.double() * (~wrong).double() - wrong.double())

    # The rows with nearly all weight are as good, and ranked last.
    assert found[fitting.IN_SERVICE].value < 0.01


def test_interval_of_few_rows_is_as_wide_as_chance() -> None:
    as_good = np.arange(24) < 1
    width = fitting.chance_width(as_good, np.ones(24))

    found = fitting.Ranking.of(np.ones(100), width)

    # One row that is as good ranks first of 24 by chance too often.
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1.0 - 1.96 * (25 / (12 * 23)) ** 0.5, abs=1e-3)
    assert fitting.chance_width(as_good, np.where(as_good, 1.0, 5.0)) == pytest.approx(width)
    assert fitting.chance_width(as_good, np.arange(1.0, 25.0)) > width


@pytest.mark.parametrize("as_good", [True, False])
def test_one_kind_of_pairs_is_refused_by_part(as_good: bool) -> None:
    pairs = as_tensors([pair_of(number, as_good) for number in range(64)], 16)

    with pytest.raises(FailedPrecondition, match="in the part that trains") as caught:
        fitting.check_both_kinds(pairs)

    assert caught.value.reason == "ONE_KIND_OF_PAIRS"


WRONG_FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"cascade": "light"}, "--cascade must be LIGHT,HEAVY, got 'light'"),
    ({"cascade": "a,b,c"}, "--cascade must be LIGHT,HEAVY"),
    ({"steps": 0}, "--steps 0 needs --start"),
    ({"out": Path(__file__).parent}, "--out must not exist"),
]


def test_settings_name_wrong_flag(tmp_path: Path) -> None:
    usual = {"objects_url": "file:///nowhere", "out": tmp_path / "out"}

    assert wrong_refusals(ValueError, lambda changes: settings(**(usual | changes)), WRONG_FLAGS) == []


def test_start_of_another_network_is_refused() -> None:
    weights = Path(__file__).parents[3] / "zoo" / "weights"

    with pytest.raises(InvalidArgument, match="--start: must be a discriminator with narrow"):
        fitting.begun(NetworkChoice.NARROW, weights / "tiny-discriminator")
