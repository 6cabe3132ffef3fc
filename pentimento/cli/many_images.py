"""Generate the images of several prompts, with a bounded number of concurrent requests."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pentimento.cli.options import say
from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, ImageRequest
from pentimento.domain.image_request import Progress as StepsDone
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.sdk.client import AsyncClient
from pentimento.sdk.generated_image import GeneratedImage

_SHOWN_PROMPT = 40
# Describes a saved image.
Describe = Callable[[Path, GeneratedImage], str]


@dataclass(frozen=True)
class Wish:
    """A prompt's request with its number from 1, and the idempotency key of a repetition."""

    number: int
    request: ImageRequest
    idempotency_key: str = ""

    @property
    def count(self) -> int:
        """Return the number of requested images, at least one; the server rejects invalid numbers."""
        return max(self.request.image_count or 1, 1)


@dataclass
class Outcomes:
    """Files and images of wishes, or errors, by (number of the prompt, index of the image).

    The images are stored without data: thousands would not fit into memory."""

    directory: Path
    files: dict[tuple[int, int], Path] = field(default_factory=dict)
    images: dict[tuple[int, int], GeneratedImage] = field(default_factory=dict)
    errors: dict[tuple[int, int], PentimentoError] = field(default_factory=dict)

    def hear(self, wish: Wish, event: GenerateEvent) -> None:
        """Save a finished image, or record a failure."""
        if isinstance(event, Completed):
            place, image = (wish.number, event.image_index), GeneratedImage.of(event)
            name = f"{wish.number:03}-{event.image_index}-{image.provenance.spec.seed}.png"
            self.files[place] = image.save(self.directory / name)
            self.images[place] = replace(image, data=b"")
        elif isinstance(event, ImageFailed):
            self.errors[wish.number, event.image_index] = event.error

    def fail(self, wish: Wish, error: PentimentoError) -> None:
        """Record an error for all unfinished images of a wish."""
        for index in range(wish.count):
            if (wish.number, index) not in self.images:
                self.errors.setdefault((wish.number, index), error)


class Bars:
    """Show a progress bar for all images and one per running image, on stderr if that is a terminal."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self._all = self._progress.add_task("images", total=total)
        self._tasks: dict[tuple[int, int], TaskID] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def hear(self, wish: Wish, event: GenerateEvent) -> None:
        """Update the bars."""
        if isinstance(event, Accepted):
            return
        place = (wish.number, event.image_index)
        if isinstance(event, Completed | ImageFailed):
            self._progress.advance(self._all)
            if place in self._tasks:
                self._progress.remove_task(self._tasks.pop(place))
        elif isinstance(event, StepsDone):
            if place not in self._tasks:
                shown = wish.request.prompt[:_SHOWN_PROMPT]
                self._tasks[place] = self._progress.add_task(f"{wish.number}.{event.image_index} {shown}")
            self._progress.update(self._tasks[place], completed=event.step, total=event.step_count)


async def generate_all(
    client: AsyncClient, wishes: Sequence[Wish], parallel: int, outcomes: Outcomes, bars: Bars
) -> None:
    """Generate all images into `outcomes`. Cancelling the task cancels all running requests. Raises an error that ends
    all requests: an image that cannot be saved."""
    places = asyncio.Semaphore(parallel)

    async def generate(wish: Wish) -> None:
        async with places:
            stream = client.stream(wish.request, idempotency_key=wish.idempotency_key)
            try:
                async with aclosing(stream) as events:
                    async for event in events:
                        outcomes.hear(wish, event)
                        bars.hear(wish, event)
            except PentimentoError as error:
                outcomes.fail(wish, error)

    try:
        async with asyncio.TaskGroup() as group:
            for wish in wishes:
                group.create_task(generate(wish))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def tell(wishes: Sequence[Wish], outcomes: Outcomes, describe: Describe, *, as_json: bool) -> None:
    """Print a line per image in the order of the prompts: saved ones on stdout, failed ones on stderr; as JSON both on
    stdout."""
    for wish in wishes:
        for index in range(wish.count):
            place, numbers = (wish.number, index), {"prompt_number": wish.number, "image_index": index}
            if place in outcomes.images:
                file, image = outcomes.files[place], outcomes.images[place]
                document = {"file": str(file), **provenance_as_json(image.provenance)}
                say({**numbers, **document}, describe(file, image), as_json=as_json)
            elif (error := outcomes.errors.get(place)) is not None and as_json:
                say({**numbers, "error": {"reason": error.reason, "message": error.message}}, "", as_json=True)
            elif error is not None:
                click.echo(f"prompt {wish.number}, image {index}: {error.message}", err=True)
