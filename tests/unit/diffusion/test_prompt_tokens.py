"""Prompts become the same tokens whoever else asks for theirs at the same moment."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
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
