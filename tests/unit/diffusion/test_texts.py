"""Tokenize prompts on several threads, and compare the text encoder with transformers' own, bit by bit."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import TextualInversionLoaderMixin
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from lab.fixtures.checkpoints import write_checkpoint, write_xl_checkpoint
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.clip_encoder import ClipTextEncoder
from pentimento.diffusion.families.texts import PromptTokenizer
from pentimento.diffusion.weights import load_components
from tests.support.text_files import edit_json

PROMPTS = ("a red circle", "a small blue star in the centre on a black background", "")


@pytest.fixture
def tokenizer(checkpoint: Path) -> PromptTokenizer:
    return PromptTokenizer(AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads take turns so often that they meet in the middle of a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("count", "cut_off"), [(77, False), (4, True)])
def test_a_prompt_is_padded_or_cut_to_the_count(tokenizer: PromptTokenizer, count: int, cut_off: bool) -> None:
    tokens, truncated = tokenizer.padded("a small blue star in the centre", count)

    assert (tuple(tokens.input_ids.shape), truncated) == ((1, count), cut_off)


@pytest.mark.usefixtures("impatient_threads")
def test_threads_that_ask_at_once_get_their_own_tokens(tokenizer: PromptTokenizer) -> None:
    asked = [(prompt, count) for prompt in PROMPTS for count in (8, 77)]
    alone = {key: tokenizer.padded(*key)[0].input_ids.tolist() for key in asked}

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda key: (key, tokenizer.padded(*key)[0].input_ids.tolist()), asked * 100))

    assert [key for key, ids in found if ids != alone[key]] == []


@pytest.mark.parametrize(
    ("prompt", "expanded"),
    [
        ("a <cat>", "a <cat> <cat>_1 <cat>_2"),
        ("<cat> and <cat> by <dog>", "<cat> <cat>_1 <cat>_2 and <cat> <cat>_1 <cat>_2 by <dog>"),
        ("a cat", "a cat"),
    ],
)
def test_prompt_inversion_with_several_vectors_uses_all(checkpoint: Path, prompt: str, expanded: str) -> None:
    plain = AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True)
    plain.add_tokens(["<cat>", "<cat>_1", "<cat>_2", "<dog>"])

    tokens, truncated = PromptTokenizer(plain, expands_inversions=True).padded(prompt, 77)
    cut = PromptTokenizer(plain, expands_inversions=True).padded("a <cat>", 5)[1]

    assert TextualInversionLoaderMixin().maybe_convert_prompt(prompt, plain) == expanded
    assert tokens.input_ids[0].tolist() == plain(expanded, padding="max_length", max_length=77).input_ids
    assert (truncated, cut) == (False, True)


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
    """Save `encoder` as the text encoder of the checkpoint at `model`, and load it."""
    folder = model / "text_encoder"
    for path in folder.iterdir():
        path.unlink()
    encoder.save_pretrained(folder, **saving)
    edit_json(model / "model_index.json", text_encoder=["transformers", type(encoder).__name__])
    found: ClipTextEncoder = load_components(check_checkpoint(model), torch.device("cpu"), dtype)["text_encoder"]
    return found


def texts() -> torch.Tensor:
    """Return two texts and their padding."""
    drawn = torch.randint(1, START, (2, TOKENS), generator=torch.Generator().manual_seed(5))
    drawn[:, 0], drawn[0, 6], drawn[0, 7:], drawn[1, -1] = START, END, 0, END
    return drawn


KINDS: dict[str, Callable[[], Any]] = {
    "quick gelu": library_encoder,
    "gelu, other epsilon": lambda: library_encoder(hidden_act="gelu", layer_norm_eps=1e-3),
    "an end token of its own": lambda: library_encoder(eos_token_id=LEGACY_END),
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.float32) for kind in KINDS), ("quick gelu", torch.float16), ("quick gelu", torch.bfloat16)],
)
@torch.inference_mode()
def test_states_equal_library(kind: str, dtype: torch.dtype, model: Path) -> None:
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
def test_projected_states_equal_library(end: int, tmp_path: Path) -> None:
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
    ("tensors", "configuration", "said"),
    [
        ({"final_layer_norm.bias": None}, {}, r".*no tensor 'final_layer_norm\.bias'"),
        (
            {"final_layer_norm.bias": torch.zeros(23)},
            {},
            r".*tensor 'final_layer_norm\.bias' is \(23,\), the configuration says \(24,\)",
        ),
        ({}, {"num_attention_heads": 5}, "hidden_size must be a multiple of num_attention_heads"),
        ({}, {"num_attention_heads": 0}, "num_attention_heads=0 is no int"),
        ({}, {"hidden_size": "24"}, "hidden_size='24' is no int"),
    ],
)
def test_load_components_refuses_wrong_encoder(
    tensors: dict[str, torch.Tensor | None], configuration: dict[str, Any], said: str, model: Path
) -> None:
    loaded(model, library_encoder())
    path = model / "text_encoder" / "model.safetensors"
    changed = {**load_file(path), **tensors}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)
    edit_json(model / "text_encoder" / "config.json", **configuration)

    with pytest.raises(BadCheckpoint, match=f"text_encoder: CLIPTextModel does not load: {said}"):
        load_components(check_checkpoint(model), torch.device("cpu"), torch.float32)
