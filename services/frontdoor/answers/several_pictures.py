"""Serve several images of one call: their ids and keys, and the single stream of their client.

Each image is a separate request for dataplane, journal and workers. Their ids show that they belong together:
`p3-<hex>` names a call for three images, `p3-<hex>-0` to `p3-<hex>-2` name the images.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, GenerateEvent, ImageFailed, RequestStatus
from pentimento.domain.reasons import Reason
from pentimento.domain.requests import RequestState
from services.frontdoor.answers.audience import Listener

_GROUP_ID = re.compile(r"p([1-9][0-9]{0,2})-[0-9a-f]{32}")
# No client's key contains it: keys are printable.
_SEPARATOR = "\x1f"
_SEED_COUNT = 2**64
# Reasons that this frontdoor is the wrong one to listen to; they do not concern the image.
_OF_THE_STREAM = (Reason.SUPERSEDED, Reason.REQUEST_ELSEWHERE)


def new_group_id(count: int, digits: str) -> str:
    """Return the id of a call of `count` images with 32 new hexadecimal digits."""
    return f"p{count}-{digits}"


def ids_of_images(group_id: str) -> tuple[str, ...]:
    """Return the ids of a call's images by their index; empty if the id names no such call."""
    found = _GROUP_ID.fullmatch(group_id)
    return tuple(f"{group_id}-{index}" for index in range(int(found[1]))) if found else ()


def group_of(request_id: str) -> str:
    """Return the id of the call of an image; "" if it is not one of several."""
    group = request_id.rpartition("-")[0]
    return group if request_id in ids_of_images(group) else ""


def images_of_call(request_id: str) -> int:
    """Return how many images the request's call has."""
    return max(len(ids_of_images(group_of(request_id))), 1)


def key_of_image(idempotency_key: str, index: int) -> str:
    """Return the idempotency key of one of several images. The first image has the call's own key, so another call
    finds it in use."""
    return f"{idempotency_key}{_SEPARATOR}{index}" if idempotency_key and index else idempotency_key


def client_key(image_key: str) -> str:
    """Return the client's idempotency key from the key of one of several images."""
    return image_key.partition(_SEPARATOR)[0]


def seed_of_image(first_seed: int, index: int) -> int:
    """Return the seed of one of several images if the client named the first one's."""
    return (first_seed + index) % _SEED_COUNT


def status_of(group_id: str, pictures: Sequence[RequestStatus]) -> RequestStatus:
    """Return the status of a call: the state of the image that has progressed least; once all have ended, COMPLETED if
    any image completed, else the state of the first."""
    states = [picture.state for picture in pictures]
    order = list(RequestState)
    open_states = sorted((state for state in states if not state.terminal), key=order.index)
    completed = [state for state in states if state is RequestState.COMPLETED]
    return RequestStatus(group_id, [*open_states, *completed, *states][0], images=tuple(pictures))


class SeveralImages:
    """Merge the streams of several images for one client. Call `accepted` first, then iterate over `events`."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._news = asyncio.Event()
        for listener in self._listeners:
            listener.news = self._news
            listener.progress_interval_s *= len(self._listeners)
        self._ids: list[str] = []

    async def accepted(self) -> Accepted:
        """Return once all images are accepted. Raises the rejection of the first rejected image."""
        firsts = [await self._first(listener) for listener in self._listeners]
        self._ids = [first.request_id for first in firsts]
        self._news.set()
        return Accepted(group_of(self._ids[0]), all(first.replayed for first in firsts), tuple(self._ids))

    async def events(self) -> AsyncIterator[GenerateEvent]:
        """Yield the events of all images, each with its image's index. A failed image does not end the stream, unless
        none completes: then the first one's error is raised at the end."""
        waiting = dict(enumerate(self._listeners))
        failures: dict[int, PentimentoError] = {}
        while waiting:
            await self._news.wait()
            self._news.clear()
            for index, listener in tuple(waiting.items()):
                for event in listener.take():
                    if not isinstance(event, Accepted | ImageFailed):
                        yield replace(event, image_index=index)
                if listener.ended:
                    del waiting[index]
                    if listener.error is not None:
                        failures[index] = _of_image(listener.error)
                        yield ImageFailed(self._ids[index], index, listener.error)
        if len(failures) == len(self._listeners):
            raise failures[min(failures)]

    async def _first(self, listener: Listener) -> Accepted:
        while True:
            for event in listener.take():
                assert isinstance(event, Accepted)
                return event
            if listener.error is not None:
                raise listener.error
            self._news.clear()
            await self._news.wait()


def _of_image(error: PentimentoError) -> PentimentoError:
    """Return the error of an image; raise an error of the stream."""
    if error.reason in _OF_THE_STREAM:
        raise error
    return error
