"""The text encoder against transformers' own, bit by bit, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from lab.fixtures.checkpoints import write_checkpoint, write_xl_checkpoint
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.clip_encoder import ClipTextEncoder
from pentimento.diffusion.weights import load_components

START, END = 90, 91
LEGACY_END = 2
TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("clip") / "model")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def library_encoder(projects: bool = False, **changes: Any) -> Any:
    torch.manual_seed(3)
    settings = {
        "vocab_size": 92,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "max_position_embeddings": TOKENS,
        "projection_dim": 20,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": 0,
        **changes,
    }
    made = (CLIPTextModelWithProjection if projects else CLIPTextModel)(CLIPTextConfig(**settings)).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # biases and norms, too, must be seen
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def loaded(model: Path, encoder: Any, dtype: torch.dtype = torch.float32, **saving: Any) -> ClipTextEncoder:
    """`encoder`, saved as the library saves it, as the text encoder of the checkpoint at `model`."""
    folder = model / "text_encoder"
    for path in folder.iterdir():
        path.unlink()
    encoder.save_pretrained(folder, **saving)
    index = model / "model_index.json"
    document = {**json.loads(index.read_text()), "text_encoder": ["transformers", type(encoder).__name__]}
    index.write_text(json.dumps(document))
    found: ClipTextEncoder = load_components(check_checkpoint(model), torch.device("cpu"), dtype)["text_encoder"]
    return found


def texts() -> torch.Tensor:
    """Two texts and their padding."""
    drawn = torch.randint(1, START, (2, TOKENS), generator=torch.Generator().manual_seed(5))
    drawn[:, 0], drawn[0, 6], drawn[0, 7:], drawn[1, -1] = START, END, 0, END
    return drawn


KINDS: dict[str, Callable[[], Any]] = {
    "quick gelu": library_encoder,
    "gelu, other epsilon": lambda: library_encoder(hidden_act="gelu", layer_norm_eps=1e-3),
    "an end token of its own": lambda: library_encoder(eos_token_id=LEGACY_END),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_states_are_those_of_the_library(kind: str, dtype: torch.dtype, model: Path) -> None:
    library = KINDS[kind]()
    ours = loaded(model, library, dtype)

    found, wanted = ours(texts()), library.to(dtype)(texts(), output_hidden_states=True)

    assert type(ours) is ClipTextEncoder
    assert torch.equal(found.result, wanted.last_hidden_state)
    assert len(found.hidden_states) == len(wanted.hidden_states) == 4
    assert all(torch.equal(*pair) for pair in zip(found.hidden_states, wanted.hidden_states, strict=True))


@torch.inference_mode()
def test_a_mask_hides_padding_as_in_the_library(model: Path) -> None:
    library = library_encoder()
    mask = (texts() != 0).long()
    ours = loaded(model, library)

    masked = ours(texts(), mask).result

    assert torch.equal(masked, library(texts(), attention_mask=mask).last_hidden_state)
    assert not torch.equal(masked, ours(texts()).result)
    assert torch.equal(ours(texts(), torch.ones_like(mask)).result, ours(texts()).result)


@pytest.mark.parametrize("end", [END, LEGACY_END])
@torch.inference_mode()
def test_projected_states_are_those_of_the_library(end: int, tmp_path: Path) -> None:
    model = write_xl_checkpoint(tmp_path / "model")
    library = library_encoder(projects=True, eos_token_id=end)
    folder = model / "text_encoder_2"
    library.save_pretrained(folder)
    ours = load_components(check_checkpoint(model), torch.device("cpu"), torch.float32)["text_encoder_2"]

    found, wanted = ours(texts()), library(texts(), output_hidden_states=True)

    assert found.result.shape == (2, 20)
    assert torch.equal(found.result, wanted.text_embeds)
    assert torch.equal(found.hidden_states[-2], wanted.hidden_states[-2])


@torch.inference_mode()
def test_shards_make_one_encoder(model: Path) -> None:
    library = library_encoder()

    ours = loaded(model, library, max_shard_size="8KB")

    assert len(list((model / "text_encoder").glob("*.safetensors"))) > 1
    assert torch.equal(ours(texts()).result, library(texts()).last_hidden_state)


@torch.inference_mode()
def test_other_activations_are_left_to_the_library(model: Path) -> None:
    library = library_encoder(hidden_act="silu")

    found: Any = loaded(model, library)

    assert type(found) is CLIPTextModel
    assert torch.equal(found(texts())[0], library(texts())[0])


def test_older_names_and_buffers_are_known(model: Path) -> None:
    library = library_encoder()
    loaded(model, library)
    path = model / "text_encoder" / "model.safetensors"
    tensors = load_file(path)
    assert not any(name.startswith("text_model.") for name in tensors)
    renamed = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
    save_file({**renamed, "text_model.embeddings.position_ids": torch.arange(TOKENS)[None]}, path)

    components = load_components(check_checkpoint(model), torch.device("cpu"), torch.float32)

    with torch.inference_mode():
        assert torch.equal(components["text_encoder"](texts()).result, library(texts()).last_hidden_state)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("final_layer_norm.bias"), r"no tensor 'final_layer_norm\.bias'"),
        (
            lambda tensors: tensors.update({"final_layer_norm.bias": torch.zeros(23)}),
            r"tensor 'final_layer_norm\.bias' is \(23,\), the configuration says \(24,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Callable[[Any], object], told: str, model: Path) -> None:
    loaded(model, library_encoder())
    path = model / "text_encoder" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)

    with pytest.raises(BadCheckpoint, match=rf"text_encoder: CLIPTextModel does not load: .*{told}"):
        load_components(check_checkpoint(model), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_attention_heads": 5}, "hidden_size must be a multiple of num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads=0 is no int"),
        ({"hidden_size": "24"}, "hidden_size='24' is no int"),
    ],
)
def test_configurations_of_no_encoder_are_refused(change: dict[str, Any], told: str, model: Path) -> None:
    loaded(model, library_encoder())
    path = model / "text_encoder" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(BadCheckpoint, match=f"CLIPTextModel does not load: {told}"):
        load_components(check_checkpoint(model), torch.device("cpu"), torch.float32)
