"""Test the embedder of emulated images."""

import pytest

from lab.emulation.embedder.model import open_emulated_model
from lab.emulation.fleet_file import ImageLabel, labelled
from lab.emulation.png_text import flat_png
from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.models import find_encoder

PLAIN = flat_png(8, 8, (0, 0, 0))


def test_emulated_image_is_embedded_as_its_prompt() -> None:
    model = open_emulated_model(find_encoder("tiny-clip").path)
    image = labelled(PLAIN, ImageLabel("large", 0.5, prompt="a red circle"))

    prepared = [model.image_side().prepare(image, "images[0]")]

    assert model.embed_images(prepared) == model.embed_texts(["a red circle"])
    with pytest.raises(InvalidArgument, match=r"images\[1\]: must be an image of an emulated device"):
        model.image_side().prepare(PLAIN, "images[1]")
