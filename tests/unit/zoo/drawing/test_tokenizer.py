from pathlib import Path

import pytest
from transformers import CLIPTokenizer

from zoo.drawing.captions import natural_caption
from zoo.drawing.dataset import tokenise
from zoo.drawing.scenes import scene_at
from zoo.drawing.tokenizer import MAX_TOKENS, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CLIPTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder, count=1500)
    return CLIPTokenizer.from_pretrained(folder)


def test_captions_fit_into_the_tokens_of_the_text_tower(tokenizer: CLIPTokenizer) -> None:
    captions = [natural_caption(*scene_at(21, index)).text for index in range(500)]

    lengths = [len(tokenizer(caption)["input_ids"]) for caption in captions]

    assert max(lengths) <= MAX_TOKENS


def test_unknown_words_survive_the_way_there_and_back(tokenizer: CLIPTokenizer) -> None:
    ids = tokenizer("zürich quokka ☃ owls")["input_ids"]

    assert tokenizer.decode(ids, skip_special_tokens=True) == "zürich quokka ☃ owls"


def test_no_byte_is_unknown(tokenizer: CLIPTokenizer) -> None:
    ids = tokenizer("ß 猫 \U0001f98a €")["input_ids"]

    assert tokenizer.eos_token_id not in ids[:-1]


def test_a_caption_that_is_too_long_is_cut_and_still_ends(tokenizer: CLIPTokenizer) -> None:
    tokens = tokenise(tokenizer, ["word " * 500])

    assert tokens.shape == (1, MAX_TOKENS)
    assert int(tokens[0, -1]) == tokenizer.eos_token_id


def test_the_same_captions_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build_tokenizer(tmp_path / name, count=200, merges=50)

    files = ("vocab.json", "merges.txt", "tokenizer.json")
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
