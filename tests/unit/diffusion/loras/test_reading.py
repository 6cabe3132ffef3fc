"""LoRA files of several writers load as diffusers loads them; the error of a bad file names the fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from lab.fixtures.lora_files import Factors, random_factors, write_diffusers_lora, write_kohya_lora, write_tensors
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import BadLora, BaseLayers, Lora, check_lora, digest_lora, layers_of, read_lora
from pentimento.diffusion.loras.key_names import original_names
from pentimento.files.lora_headers import judge_lora
from pentimento.stores.objects.store import digest_of
from tests.unit.diffusion.loras.made_loras import LAYER, pair

F32 = torch.float32
Write = Callable[[Path, BaseLayers], Path]
ZOO = Path(__file__).parents[4] / "zoo" / "weights"
# Without the text encoder's attention: diffusers' loader drops kohya's names for it with this release of transformers.
KOHYA_ENDS = ("to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2", "proj_in", "fc1", "fc2")


def deltas(lora: Lora) -> dict[str, Tensor]:
    """Return the change of each weight, by component and module, flattened to a matrix."""
    return {
        f"{component}.{module}": factors.scale * (factors.up.flatten(1) @ factors.down.flatten(1))
        for component, modules in lora.components.items()
        for module, factors in modules.items()
    }


def deltas_of_diffusers(pipeline_class: str, checkpoint: Path, file: Path) -> dict[str, Tensor]:
    """Return the deltas that diffusers' own loader reads from the file, as PEFT computes them."""
    import diffusers

    index = json.loads((checkpoint / "model_index.json").read_text())
    absent = {name: None for name, value in index.items() if value == [None, None]}
    pipeline = getattr(diffusers, pipeline_class).from_pretrained(checkpoint, **absent)
    pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name="it")
    components = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    return {
        f"{component}.{name.removeprefix('text_model.')}": module.get_delta_weight("it").detach().flatten(1)
        for component, part in components.items()
        for name, module in part.named_modules()
        if hasattr(module, "get_delta_weight")
    }


def assert_same_deltas(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert given.keys() == wanted.keys()
    for name, delta in given.items():
        torch.testing.assert_close(delta, wanted[name], rtol=1e-6, atol=1e-7, msg=name)


def product(factors: Factors, component: str, module: str) -> Tensor:
    down, up = factors[component][module]
    return up.flatten(1) @ down.flatten(1)


def test_kohya_file_of_diffusers_is_read_with_whole_alphas(base: BaseLayers, tmp_path: Path) -> None:
    """Training scripts of diffusers write such files for other programs: each alpha is the rank, a whole number."""
    from diffusers.utils import convert_state_dict_to_kohya

    factors = random_factors(base, seed=9)
    peft = {
        f"{component}.{name}.{half}.weight": tensor
        for component, modules in factors.items()
        for name, (down, up) in modules.items()
        for half, tensor in (("lora_A", down), ("lora_B", up))
    }
    path = write_tensors(tmp_path / "converted.safetensors", convert_state_dict_to_kohya(peft))

    judge_lora(path.read_bytes(), "file")
    read = read_lora(path, base, F32)

    wanted = {f"{part}.{name}": product(factors, part, name) for part in factors for name in factors[part]}
    assert_same_deltas(deltas(read), wanted)


def by_processors(folder: Path, base: BaseLayers) -> Path:
    """Write attentions' processors, as diffusers did until 2023."""
    factors = random_factors(base, ends=("to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj", "v_proj", "out_proj"))
    tensors = {}
    for component, modules in factors.items():
        for module, (down, up) in modules.items():
            attention, layer = module.replace("to_out.0", "to_out").rsplit(".", 1)
            within = ".processor" if component == "unet" else ""
            stem = f"{component}.{attention}{within}.to_{layer.removeprefix('to_').removesuffix('_proj')}_lora"
            tensors |= {f"{stem}.down.weight": down, f"{stem}.up.weight": up}
    return write_tensors(folder / "it.safetensors", tensors)


def by_diffusers(alpha: float, alphas: dict[str, float] | None = None, **factors: Any) -> Write:
    return lambda folder, base: write_diffusers_lora(folder, random_factors(base, **factors), alpha, alphas)


def by_kohya(folder: Path, base: BaseLayers) -> Path:
    others = original_names(base.shapes["unet"]) if "text_encoder_2" in base.shapes else None
    return write_kohya_lora(folder / "it.safetensors", random_factors(base, ends=KOHYA_ENDS), 5.0, others)


# The pipeline, the prefix of the fixtures, the writer, and parts of names that are read.
AS_DIFFUSERS: dict[str, tuple[str, str, Write, tuple[str, ...]]] = {
    "diffusers": ("StableDiffusionPipeline", "", by_diffusers(5.0), ("conv1", "text_encoder")),
    "kohya": ("StableDiffusionPipeline", "", by_kohya, ("conv1", "text_encoder")),
    "processors": ("StableDiffusionPipeline", "", by_processors, ("to_out", "out_proj")),
    "alphas of modules": (
        "StableDiffusionPipeline",
        "",
        by_diffusers(2.0, {LAYER: 7.0}, rank=2, components=["unet"]),
        (LAYER,),
    ),
    "kohya's SDXL": ("StableDiffusionXLPipeline", "xl_", by_kohya, ("unet.", "text_encoder.", "text_encoder_2.")),
    "flow": (
        "StableDiffusion3Pipeline",
        "flow_",
        by_diffusers(1.0, ends=("to_q", "add_k_proj", "q_proj")),
        ("transformer.",),
    ),
}


@pytest.mark.parametrize("kind", AS_DIFFUSERS)
def test_read_lora_has_the_deltas_of_diffusers(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pipeline, family, write, parts = AS_DIFFUSERS[kind]
    base: BaseLayers = request.getfixturevalue(f"{family}base")
    file = write(tmp_path, base)

    read = deltas(read_lora(file, base, F32))

    assert all(any(part in name for name in read) for part in parts)
    assert_same_deltas(read, deltas_of_diffusers(pipeline, request.getfixturevalue(f"{family}checkpoint"), file))


def test_kohyas_names_of_a_text_encoders_attention(base: BaseLayers, tmp_path: Path) -> None:
    factors = random_factors(base, ends=("q_proj", "k_proj", "v_proj", "out_proj"), components=["text_encoder"])
    file = write_kohya_lora(tmp_path / "it.safetensors", factors, alpha=6.0)

    read = deltas(read_lora(file, base, F32))

    names = factors["text_encoder"]
    assert len(names) == 8
    assert_same_deltas(read, {f"text_encoder.{name}": 2 * product(factors, "text_encoder", name) for name in names})


def test_names_of_original_layout_equal_first_release() -> None:
    blocks = [
        f"{side}.{block}.{kind}.{place}.x"
        for side, per_block in (("down_blocks", 2), ("up_blocks", 3))
        for block in range(3)
        for kind in ("resnets", "attentions")
        for place in range(per_block)
        if not (kind == "attentions" and block == (0 if side == "down_blocks" else 2))
    ]
    samplers = [f"down_blocks.{block}.downsamplers.0.conv" for block in (0, 1)]
    names = original_names([*blocks, *samplers, *(f"up_blocks.{block}.upsamplers.0.conv" for block in (0, 1))])

    # SDXL's, by its published checkpoint.
    assert names["down_blocks.1.attentions.0.x"] == "input_blocks.4.1.x"
    assert names["down_blocks.2.attentions.1.x"] == "input_blocks.8.1.x"
    assert names["down_blocks.0.downsamplers.0.conv"] == "input_blocks.3.0.op"
    assert names["up_blocks.0.attentions.2.x"] == "output_blocks.2.1.x"
    assert names["up_blocks.0.upsamplers.0.conv"] == "output_blocks.2.2.conv"
    assert names["up_blocks.2.resnets.0.x"] == "output_blocks.6.0.x"


def written_by_hand(path: Path, tensors: list[tuple[str, Tensor]]) -> Path:
    """Write a safetensors file with its bytes in this order and its header in reverse order. The library would reorder
    them."""
    entries, end = {}, 0
    for name, tensor in tensors:
        dtype = {torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}[tensor.dtype]
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    header = json.dumps(dict(reversed(entries.items()))).encode()
    data = b"".join(tensor.numpy().tobytes() for _, tensor in tensors)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def test_types_may_change_from_tensor_to_tensor_wherever_they_lie(base: BaseLayers, tmp_path: Path) -> None:
    (down_name, down), (up_name, up) = pair(base).items()
    alpha = torch.tensor(1.5, dtype=torch.float16)
    tensors = [(f"unet.{LAYER}.alpha", alpha), (down_name, down), (up_name, up.double())]
    file = written_by_hand(tmp_path / "it.safetensors", tensors)

    read = read_lora(file, base, F32).components["unet"][LAYER]

    assert (read.alpha, read.down.dtype, read.up.dtype) == (1.5, F32, F32)
    assert torch.equal(read.down, down) and torch.equal(read.up, up)


@pytest.mark.parametrize(
    ("stored", "alpha", "metadata", "alpha_read"),
    [
        (F32, None, None, 3.0),
        (F32, torch.tensor(70_001.0), None, 70_001.0),
        (torch.float16, None, None, 3.0),
        (torch.float8_e4m3fn, torch.tensor(2, dtype=torch.int32), None, 2.0),
        (torch.float8_e5m2, torch.tensor(2, dtype=torch.int32), None, 2.0),
        (F32, None, '{"unet.lora_alpha": 6, "unet.use_rslora": true, "unet.rank_pattern": {"a|b": 3}}', 6 * 3**0.5),
    ],
    ids=["no alpha", "a large alpha", "half precision", "8 bits", "other 8 bits", "stabilised by rank"],
)
def test_read_lora_takes_alphas_and_types(
    stored: torch.dtype, alpha: Tensor | None, metadata: str | None, alpha_read: float, base: BaseLayers, tmp_path: Path
) -> None:
    factors = {name: (tensor / 4).to(stored) for name, tensor in pair(base).items()}
    tensors = factors if alpha is None else {**factors, f"unet.{LAYER}.alpha": alpha}
    file = write_tensors(
        tmp_path / "it.safetensors", tensors, None if metadata is None else {"lora_adapter_metadata": metadata}
    )

    read = {dtype: read_lora(file, base, dtype).components["unet"][LAYER] for dtype in (F32, torch.float16)}

    # An alpha is not rounded to the model's precision.
    assert [found.alpha for found in read.values()] == [pytest.approx(alpha_read)] * 2
    assert torch.equal(read[F32].down, factors[f"unet.{LAYER}.lora_A.weight"].to(F32))
    assert torch.equal(read[F32].up, factors[f"unet.{LAYER}.lora_B.weight"].to(F32))


def test_numbers_beyond_the_models_precision_are_refused(base: BaseLayers, tmp_path: Path) -> None:
    large = pair(base, up=torch.full((32, 3), 1e6))
    file = write_tensors(tmp_path / "it.safetensors", large)

    assert read_lora(file, base, F32).components["unet"][LAYER].up.max() == 1e6
    with pytest.raises(BadLora, match=f"{LAYER}: holds numbers that are not finite"):
        read_lora(file, base, torch.float16)


@pytest.mark.parametrize("halves", [("lora.down", "lora.up"), ("lora_linear_layer.down", "lora_linear_layer.up")])
def test_older_names_of_diffusers(halves: tuple[str, str], base: BaseLayers, tmp_path: Path) -> None:
    factors = random_factors(base)
    tensors = zip(halves, factors["unet"][LAYER], strict=True)
    file = write_tensors(tmp_path / "it.safetensors", {f"unet.{LAYER}.{half}.weight": one for half, one in tensors})

    read = deltas(read_lora(file, base, F32))

    assert_same_deltas(read, {f"unet.{LAYER}": product(factors, "unet", LAYER)})


def test_1x1_convolution_may_be_written_as_a_linear_layer(base: BaseLayers, tmp_path: Path) -> None:
    name = next(name for name, shape in base.shapes["unet"].items() if shape[2:] == (1, 1))
    factors = random_factors(base, ends=(name,), components=["unet"])
    down, up = factors["unet"][name]
    flat = {f"unet.{name}.lora_A.weight": down.flatten(1), f"unet.{name}.lora_B.weight": up.flatten(1)}

    lora = read_lora(write_tensors(tmp_path / "it.safetensors", flat), base, F32)

    assert lora.components["unet"][name].down.shape == down.shape
    assert_same_deltas(deltas(lora), {f"unet.{name}": product(factors, "unet", name)})


@pytest.mark.skipif(not (ZOO / "tiny-lora-neon").is_dir(), reason="the zoo's weights are not here")
def test_zoo_files_of_one_lora_hold_the_same() -> None:
    model = load_model(ZOO / "tiny-heavy", torch.device("cpu"), F32)
    base = layers_of(model.info.family, model.adaptable)
    folder = ZOO / "tiny-lora-neon"
    files = ("pytorch_lora_weights.safetensors", "kohya/lora-neon.safetensors", "peft/adapter_model.safetensors")
    entries = {entry["name"]: entry for entry in json.loads((ZOO / "registry.json").read_text())["models"]}

    read = [read_lora(folder / name, base, F32) for name in files]

    first, *others = map(deltas, read)
    assert len(first) == 78
    for other in others:
        assert_same_deltas(other, first)
    assert digest_lora(folder / files[0]) == read[0].digest == entries["tiny-lora-neon"]["digest"]


def test_check_reads_the_header_alone(base: BaseLayers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tensors(tmp_path / "it.safetensors", pair(base))
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    monkeypatch.setattr(safetensors.torch, "load", lambda data: pytest.fail("tensors were made"))

    check_lora(file, base)


def test_digest_lora_covers_file_and_alphas(base: BaseLayers, tmp_path: Path) -> None:
    file = write_tensors(tmp_path / "adapter_model.safetensors", pair(base))
    digests = [digest_lora(file)]
    assert digests[0] == read_lora(file, base, F32).digest == digest_of(file.read_bytes())
    for alpha in (2, 4):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"lora_alpha": alpha}))
        digests.append(digest_lora(file))

        assert read_lora(file, base, F32).digest == digests[-1]
    assert len(set(digests)) == 3
