"""Digests of the images that a request brings: each was found to be whole, and none holds up the event loop."""

import threading
from dataclasses import replace

import pytest

from lab.emulation.png_text import flat_png
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, InitImage, Scheduler
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects import inputs
from services.frontdoor.objects.inputs import checked_digests

SMALL, LARGE = flat_png(32, 32, (200, 30, 30)), flat_png(640, 640, (30, 200, 30))
IMAGES_SPEC = GenerationSpec(
    "a red circle",
    "",
    "tiny",
    32,
    32,
    10,
    3.0,
    Scheduler.DDIM,
    7,
    init_image=InitImage(LARGE, 0.5),
    controlnets=(ControlNetSelection("canny", SMALL),),
)


async def test_each_image_has_its_digest_by_its_place() -> None:
    found = await checked_digests(IMAGES_SPEC)

    assert found == {
        "init_image.image": digest_of(LARGE),
        "controlnets[0].conditioning_image": digest_of(SMALL),
    }


@pytest.mark.parametrize(
    ("damaged", "place"),
    [
        ({"init_image": InitImage(LARGE[:-40] + bytes(40), 0.5)}, "init_image.image"),
        ({"init_image": InitImage(LARGE, 0.5, mask=SMALL[:60])}, "init_image.mask"),
        (
            {"controlnets": (ControlNetSelection("canny", SMALL), ControlNetSelection("depth", SMALL[:-1]))},
            "controlnets[1].conditioning_image",
        ),
    ],
)
async def test_image_that_is_not_whole_is_named_by_place(damaged: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await checked_digests(replace(IMAGES_SPEC, **damaged))  # type: ignore[arg-type]

    assert [one.field for one in refused.value.violations] == [place]


async def test_images_are_checked_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[int]()

    def noted(data: bytes, field: str) -> None:
        threads.add(threading.get_ident())

    monkeypatch.setattr(inputs, "check_whole", noted)

    await checked_digests(IMAGES_SPEC)

    assert threading.get_ident() not in threads and threads
