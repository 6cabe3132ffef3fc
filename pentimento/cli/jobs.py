"""`pentimento jobs`: requests that continue without their client."""

import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import frontdoor_client
from pentimento.cli.connection import connection_options
from pentimento.cli.generate import generate, request_from, summary, watch
from pentimento.cli.options import say
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.jobs import RequestState, RequestSummary
from pentimento.files.json_values import check_folder
from pentimento.sdk.generated_image import GeneratedImage, ImageSet

# Waiting for a job continues through a restart of its frontdoor.
PATIENT = RetryPolicy(tries=RetryPolicy.accepted_tries)
# Options of `generate` that `submit` does not offer.
NOT_OFFERED = frozenset({"prompts", "prompts_file", "count", "output", "output_dir", "parallel", "preview"})


@click.group()
def jobs() -> None:
    """Submit requests that run without you, and find them again."""


@jobs.command()
@click.argument("prompt")
@click.option("--idempotency-key", default="", help="a repeated call with the same key finds the first one's job")
@click.option("--webhook", default="", metavar="URL", help="called when the job has ended, if the suite allows it")
@connection_options
def submit(prompt: str, idempotency_key: str, webhook: str, as_json: bool, **options: Any) -> None:
    """Submit PROMPT as a job and print its id."""
    # One image; jobs with several are submitted by the API.
    request = request_from(prompt, {**dict.fromkeys(NOT_OFFERED), **options})
    with frontdoor_client(options) as client:
        accepted = client.submit(request, idempotency_key=idempotency_key, webhook_url=webhook)
    shown = {"request_id": accepted.request_id, "replayed": accepted.replayed}
    say(shown, accepted.request_id, as_json=as_json)


submit.params += [
    option for option in generate.params if option.name not in NOT_OFFERED | {one.name for one in submit.params}
]


@jobs.command(name="list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in RequestState]),
    help="only jobs in this state; may be repeated",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="most jobs to list")
@connection_options
def list_all(states: tuple[str, ...], limit: int, as_json: bool, **options: Any) -> None:
    """List your jobs, newest first."""
    with frontdoor_client(options) as client, closing(client.jobs(*map(RequestState, states))) as found:
        for _, one in zip(range(limit), found, strict=False):
            say(document(one), line(one), as_json=as_json)


@jobs.command()
@click.argument("request_id")
@connection_options
def show(request_id: str, as_json: bool, **options: Any) -> None:
    """Show the progress of a job."""
    with frontdoor_client(options) as client:
        status = client.get_request(request_id, omit_image=True)
    say(status_document(status), status_text(status), as_json=as_json)


@jobs.command()
@click.argument("request_id")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file to write [REQUEST_ID.png]")
@connection_options
def wait(request_id: str, output: Path | None, as_json: bool, **options: Any) -> None:
    """Wait for a job and save its image, or each of several as IMAGE_ID.png (.jpeg, .webp). Ctrl-C leaves the job
    running."""
    target = output or Path(f"{request_id}.png")
    check_folder("output", target)
    with frontdoor_client(options, PATIENT) as client:
        if client.get_request(request_id, omit_image=True).images:
            if output is not None:
                raise click.UsageError("--output is for one image; each of several is saved under its own id")
            save_all(client.wait_all(request_id), as_json=as_json)
            return
        with closing(client.attach(request_id)) as events:
            image = watch(events, target, quiet=as_json)
    tell_saved(image, image.save(output or file_of(request_id, image)), as_json=as_json)


def save_all(found: ImageSet, *, as_json: bool) -> None:
    """Save and describe the images of a job with several. Exits with 1 if one failed; the others are saved."""
    for image in found.images:
        tell_saved(image, image.save(file_of(image.provenance.request_id, image)), as_json=as_json)
    for failed in found.failures:
        click.echo(f"{failed.request_id}: {failed.error.message}", err=True)
    if found.failures:
        sys.exit(1)


def file_of(request_id: str, image: GeneratedImage) -> Path:
    """Return the default file of an image."""
    return Path(f"{request_id}.{image.format.value}")


def tell_saved(image: GeneratedImage, saved: Path, *, as_json: bool) -> None:
    """Print the file of an image."""
    say({"request_id": image.provenance.request_id, "file": str(saved)}, summary(saved, image), as_json=as_json)


@jobs.command()
@click.argument("request_id")
@connection_options
def cancel(request_id: str, as_json: bool, **options: Any) -> None:
    """Cancel a job and print its final state."""
    with frontdoor_client(options) as client:
        state = client.cancel(request_id)
    say({"request_id": request_id, "state": state.value}, state.value, as_json=as_json)


def document(one: RequestSummary) -> dict[str, Any]:
    """Return a request as a JSON document."""
    return {**vars(one), "state": one.state.value}


def status_document(status: RequestStatus) -> dict[str, Any]:
    """Return a request as a document of `show --json`."""
    told: dict[str, Any] = document(status.summary) if status.summary is not None else {}
    if status.progress is not None:
        told |= {"step": status.progress.step, "step_count": status.progress.step_count}
    if status.webhook is not None:
        told["webhook"] = {**vars(status.webhook), "state": status.webhook.state.value}
    return told


def line(one: RequestSummary) -> str:
    """Format a request as a line: id, state, time of acceptance, duration, reason of a failure."""
    took = f"{(one.finished_at_ms - one.accepted_at_ms) / 1000:.1f} s" if one.finished_at_ms is not None else ""
    parts = (one.request_id, f"{one.state.value:9}", time_text(one.accepted_at_ms), f"{took:>9}", one.error_reason)
    return "  ".join(parts).rstrip()


def status_text(status: RequestStatus) -> str:
    """Format a request for `show`."""
    told = [line(status.summary)] if status.summary is not None else []
    if status.progress is not None:
        told.append(f"step {status.progress.step} of {status.progress.step_count}")
    if status.error_message:
        told.append(status.error_message)
    if status.summary is not None and status.summary.kept_until_ms is not None:
        told.append(f"kept until {time_text(status.summary.kept_until_ms)}")
    if status.webhook is not None:
        error = f": {status.webhook.error}" if status.webhook.error else ""
        told.append(f"webhook {status.webhook.state.value} after {status.webhook.try_count} calls{error}")
    return "\n".join(told)


def time_text(at_ms: int) -> str:
    """Format a time in UTC, to the second."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
