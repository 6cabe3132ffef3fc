import pytest

from pentimento.domain.generation import ControlNetSelection, InitImage
from pentimento.domain.replay import put_inputs, take_inputs
from tests.support.values import a_spec

CONTROLNETS = (ControlNetSelection("canny", b"edges"), ControlNetSelection("depth", b"depths", 0.5))
SPEC = a_spec(controlnets=CONTROLNETS, init_image=InitImage(b"picture", 0.5))


def test_take_inputs_returns_every_image_by_its_place() -> None:
    bare, inputs = take_inputs(SPEC)

    assert inputs == {
        "controlnets[0].conditioning_image": b"edges",
        "controlnets[1].conditioning_image": b"depths",
        "init_image.image": b"picture",
    }
    assert not [data for data in inputs.values() if data in repr(bare).encode()]
    assert bare.init_image == InitImage(b"", 0.5)


def test_put_inputs_restores_taken_inputs() -> None:
    bare, inputs = take_inputs(SPEC)

    assert put_inputs(bare, inputs) == SPEC


def test_take_inputs_of_spec_without_bytes_changes_nothing() -> None:
    bare = a_spec()

    assert take_inputs(bare) == (bare, {})
    assert take_inputs(bare)[0] is bare
    assert put_inputs(bare, {}) is bare


def test_put_inputs_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        put_inputs(SPEC, {"mask.image": b"mask"})
