"""Digests of the images that a request comes with: large ones are nothing for the event loop."""

import threading

import pytest

from pentimento.domain.generation import ControlNetSelection, GenerationSpec, InitImage, Scheduler
from pentimento.stores.objects.store import digest_of
from services.frontdoor.objects import inputs
from services.frontdoor.objects.inputs import input_digests

SMALL, LARGE = b"small", bytes(1 << 20)
SPEC = GenerationSpec(
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
    found = await input_digests(SPEC)

    assert found == {
        "init_image.image": digest_of(LARGE),
        "controlnets[0].conditioning_image": digest_of(SMALL),
    }


async def test_only_large_images_go_to_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = dict[int, int]()

    def noted(data: bytes) -> str:
        threads[len(data)] = threading.get_ident()
        return digest_of(data)

    monkeypatch.setattr(inputs, "digest_of", noted)

    await input_digests(SPEC)

    assert threads[len(SMALL)] == threading.get_ident() != threads[len(LARGE)]
