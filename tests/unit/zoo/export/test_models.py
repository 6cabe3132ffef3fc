"""Stock diffusers and transformers load an export; a failed export leaves the earlier one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, StableDiffusion3Pipeline, StableDiffusionPipeline
from transformers import AutoModelForImageClassification, CLIPImageProcessor, CLIPModel, CLIPTokenizer

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import digest_checkpoint, digest_directory
from pentimento.diffusion.families import load_model
from pentimento.domain.errors import FailedPrecondition, ResourceExhausted
from services.embedder.dual_encoder import open_encoder
from zoo.drawing.scenes import IMAGE_SIZE
from zoo.export import models
from zoo.export.models import export_all, missing_parts, parts_of
from zoo.registry import ALL, MODELS, VERSION, WEIGHTS, digest_of, read_registry, write_registry
from zoo.train.loop import CHECKPOINT
from zoo.train.parts import PARTS

PIPELINES = ("tiny-heavy", "tiny-light")
SHARED = {
    "text tower": [
        *(f"{name}/text_encoder/model.safetensors" for name in PIPELINES),
        "tiny-clip/model-00001-of-00002.safetensors",
        "tiny-flow/text_encoder/model-00001-of-00002.safetensors",
        "tiny-flow/text_encoder_2/model-00001-of-00002.safetensors",
    ],
    "autoencoder": [f"{name}/vae/diffusion_pytorch_model.safetensors" for name in (*PIPELINES, "tiny-flow")],
}


@pytest.mark.parametrize("name", [*PIPELINES, "tiny-flow"])
def test_stock_pipeline_generates(name: str, exported: Path) -> None:
    is_flow = name == "tiny-flow"
    kind: Any = StableDiffusion3Pipeline if is_flow else StableDiffusionPipeline
    pipeline = kind.from_pretrained(
        exported / name, **({"text_encoder_3": None, "tokenizer_3": None} if is_flow else {})
    )
    pipeline.set_progress_bar_config(disable=True)
    limit = {"max_sequence_length": 0} if is_flow else {}

    images = pipeline("a red circle", num_inference_steps=2, output_type="np", **limit).images

    assert is_flow or pipeline.unet.dtype == pipeline.text_encoder.dtype == torch.float32
    assert images.shape == (1, IMAGE_SIZE, IMAGE_SIZE, 3)
    assert np.isfinite(images).all()


def test_our_engine_puts_no_tokens_in_the_place_of_t5(exported: Path) -> None:
    model = load_model(exported / "tiny-flow", torch.device("cpu"), torch.float32)
    tokens = CLIPTokenizer.from_pretrained(exported / "tiny-flow" / "tokenizer").model_max_length

    assert model.encode_prompt("a red circle").conditioning.states.shape[1] == tokens


def test_stock_clip_model_loads_shards_and_embeds(exported: Path) -> None:
    model, loading = CLIPModel.from_pretrained(exported / "tiny-clip", output_loading_info=True)
    tokens = CLIPTokenizer.from_pretrained(exported / "tiny-clip")("a red circle", return_tensors="pt")
    pixels = CLIPImageProcessor.from_pretrained(exported / "tiny-clip")(
        np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8), return_tensors="pt"
    )

    found = model(**tokens, **pixels)

    assert not any(loading.values())
    assert found.text_embeds.shape == found.image_embeds.shape == (1, model.config.projection_dim)


@pytest.mark.parametrize("name", ["tiny-controlnet-edges", "tiny-controlnet-layout"])
def test_a_stock_controlnet_fits_its_base(name: str, exported: Path) -> None:
    controlnet = ControlNetModel.from_pretrained(exported / name)
    base = json.loads((exported / "tiny-heavy" / "unet" / "config.json").read_text(encoding="utf-8"))

    assert controlnet.config.block_out_channels == base["block_out_channels"]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.kind == "lora"])
def test_a_stock_pipeline_takes_a_lora(name: str, exported: Path) -> None:
    pipeline = StableDiffusionPipeline.from_pretrained(exported / "tiny-heavy")

    pipeline.load_lora_weights(exported / name, adapter_name="style", weight_name="pytorch_lora_weights.safetensors")

    assert pipeline.get_list_adapters() == {"unet": ["style"]}


def test_a_stock_classifier_loads_the_discriminator(exported: Path) -> None:
    model = AutoModelForImageClassification.from_pretrained(exported / "tiny-discriminator").eval()

    assert "real" in model.config.label2id
    assert "pentimento_calibration" in model.config.to_dict()


@pytest.mark.parametrize("what", SHARED)
def test_shared_files_of_models_are_identical(what: str, exported: Path) -> None:
    assert len({(exported / name).read_bytes() for name in SHARED[what]}) == 1


def test_the_registry_names_every_model_with_its_digest_licence_and_card(exported: Path) -> None:
    registry = read_registry(exported)

    assert list(registry) == list(MODELS)
    for name, entry in registry.items():
        assert entry["digest"] == digest_of(MODELS[name], exported / name)
        assert entry["licence"] == "Apache-2.0"
        assert (exported / str(entry["card"])).is_file()


def test_an_adapter_names_the_base_it_stands_on(exported: Path) -> None:
    registry = read_registry(exported)

    for name in ("tiny-controlnet-edges", "tiny-lora-mosaic"):
        assert registry[name]["base"] == {"name": "tiny-heavy", "digest": registry["tiny-heavy"]["digest"]}
    assert registry["tiny-discriminator"]["cascade"]["light"]["digest"] == registry["tiny-light"]["digest"]


def test_digests_of_registry_equal_services(exported: Path) -> None:
    registry = read_registry(exported)

    for name in PIPELINES:
        assert digest_checkpoint(check_checkpoint(exported / name)).model == registry[name]["digest"]
    assert open_encoder(exported / "tiny-clip").digest == registry["tiny-clip"]["digest"]


def test_digest_directory_covers_files_and_names_without_cards(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"1")
    first = digest_directory(tmp_path)
    (tmp_path / "README.md").write_text("# A card", encoding="utf-8")
    (tmp_path / "samples.png").write_bytes(b"")
    assert digest_directory(tmp_path) == first

    (tmp_path / "a.json").rename(tmp_path / "b.json")
    renamed = digest_directory(tmp_path)
    (tmp_path / "b.json").write_bytes(b"2")
    assert len({first, renamed, digest_directory(tmp_path)}) == 3


def test_export_names_missing_parts_and_bases(empty_work: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="run `pentimento zoo train autoencoder` first"):
        export_all(empty_work, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()
    with pytest.raises(FailedPrecondition, match="tiny-clip needs dual-encoder"):
        export_all(empty_work, tmp_path / "weights", ["tiny-clip"])

    (tmp_path / "tiny-lora-neon").mkdir()
    with pytest.raises(FailedPrecondition, match="tiny-lora-neon stands on tiny-heavy"):
        write_registry(tmp_path)


def test_a_model_needs_the_parts_that_its_part_stands_on(tmp_path: Path) -> None:
    (tmp_path / "autoencoder").mkdir()
    (tmp_path / "autoencoder" / CHECKPOINT).touch()

    assert parts_of(MODELS["tiny-lora-neon"]) == ["autoencoder", "dual-encoder", "heavy", "lora-neon"]
    assert missing_parts(MODELS["tiny-light"], tmp_path) == ["dual-encoder", "light"]
    assert {model.part for model in MODELS.values()} <= PARTS.keys()


class TestFailures:
    """Failing exports of two made-up directories."""

    @pytest.fixture(autouse=True)
    def made_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = ""

        def writes(model: object, count: int | None = None) -> models.Export:
            def write(work: Path, folder: Path) -> None:
                folder.mkdir()
                (folder / "config.json").write_text("{}", encoding="utf-8")
                if folder.name == self.failing:
                    raise OSError(28, "No space left on device")

            return write

        monkeypatch.setattr(models, "exporter_of", writes)
        monkeypatch.setattr(models, "missing_parts", lambda model, work: [])
        monkeypatch.setattr(models, "notes_on", lambda part, work: [])
        monkeypatch.setattr(models, "write_cards", lambda *arguments, **options: [])

    def names(self, folder: Path) -> list[str]:
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def test_one_failing_leaves_every_old_directory(self, tmp_path: Path) -> None:
        (tmp_path / "tiny-heavy").mkdir()
        (tmp_path / "tiny-heavy" / "old.json").write_text("{}", encoding="utf-8")
        self.failing = "tiny-light"

        with pytest.raises(ResourceExhausted, match="No space left on device"):
            export_all(tmp_path, tmp_path, ["tiny-heavy", "tiny-light"])

        assert self.names(tmp_path) == ["tiny-heavy/old.json"]

    def test_a_whole_one_replaces_the_old_directory(self, tmp_path: Path) -> None:
        (tmp_path / "tiny-heavy").mkdir()
        (tmp_path / "tiny-heavy" / "old.json").write_text("{}", encoding="utf-8")

        export_all(tmp_path, tmp_path, ["tiny-heavy"])

        assert self.names(tmp_path) == ["registry.json", "tiny-heavy/config.json"]

    def test_one_that_was_killed_between_the_two_renames_is_put_right(self, tmp_path: Path) -> None:
        (tmp_path / ".tiny-heavy.old").mkdir()
        (tmp_path / ".tiny-heavy.old" / "old.json").write_text("{}", encoding="utf-8")
        (tmp_path / ".exporting" / "tiny-heavy").mkdir(parents=True)

        export_all(tmp_path, tmp_path, ["tiny-light"])

        assert self.names(tmp_path) == ["registry.json", "tiny-heavy/old.json", "tiny-light/config.json"]


def test_the_registry_in_the_tree_tells_the_truth_about_the_weights() -> None:
    if json.loads((WEIGHTS / "registry.json").read_text(encoding="utf-8")).get("version") != VERSION:
        pytest.skip("the weights in the tree are of an earlier version, whose digests were others")
    for name, entry in read_registry(WEIGHTS).items():
        assert digest_of(ALL[name], WEIGHTS / str(entry["path"])) == entry["digest"], name
