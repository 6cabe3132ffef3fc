import pytest

from pentimento.domain.generation import ControlNetSelection, GenerationSpec, InitImage, Scheduler
from pentimento.domain.spec_inputs import put_inputs, take_inputs

CONTROLNETS = (ControlNetSelection("canny", b"edges"), ControlNetSelection("depth", b"depths", 0.5))
SPEC = GenerationSpec(
    "a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.EULER, 7, 0.0, (), CONTROLNETS, InitImage(b"picture", 0.5)
)


def test_every_image_of_a_spec_is_taken_by_its_place() -> None:
    bare, inputs = take_inputs(SPEC)

    assert inputs == {
        "controlnets[0].conditioning_image": b"edges",
        "controlnets[1].conditioning_image": b"depths",
        "init_image.image": b"picture",
    }
    assert not [data for data in inputs.values() if data in repr(bare).encode()]
    assert bare.init_image == InitImage(b"", 0.5)


def test_what_was_taken_is_put_back_where_it_was() -> None:
    bare, inputs = take_inputs(SPEC)

    assert put_inputs(bare, inputs) == SPEC


def test_a_spec_without_bytes_is_given_back_as_it_is() -> None:
    bare = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.EULER, 7, 0.0, (), (), None)

    assert take_inputs(bare) == (bare, {})
    assert take_inputs(bare)[0] is bare
    assert put_inputs(bare, {}) is bare


def test_an_image_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        put_inputs(SPEC, {"mask.image": b"mask"})
