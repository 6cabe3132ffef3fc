"""Prompts become the same tokens whoever else asks for theirs at the same moment."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from diffusers.loaders import TextualInversionLoaderMixin
from transformers import AutoTokenizer

from pentimento.diffusion.families.prompt_tokens import PromptTokenizer

PROMPTS = ("a red circle", "a small blue star in the centre on a black background", "")


@pytest.fixture
def tokenizer(checkpoint: Path) -> PromptTokenizer:
    return PromptTokenizer(AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads take turns so often that they meet in the middle of a call."""
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
