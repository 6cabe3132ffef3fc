"""The lines that `pentimento up` prints once a suite serves: addresses, models, missing profiles."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pentimento.cli.detached import stopping
from pentimento.supervisor.models import WEIGHTS, ModelDirectory
from pentimento.supervisor.state import Endpoint
from pentimento.supervisor.suite_settings import SuiteSettings


def banner(settings: SuiteSettings, endpoint: Endpoint, state: Path, unprofiled: Sequence[str]) -> Iterator[str]:
    """Yield the lines, each with its topic first. `unprofiled`: models that the policy cannot plan with."""
    if settings.emulated is not None:
        yield "EMULATED  devices with profiled times: no image is generated"
    if endpoint.http:
        yield f"HTTP      http://{endpoint.http} (the console; OpenAI's images API under /v1)"
    yield f"gRPC      {endpoint.public or endpoint.frontdoor}"
    if endpoint.admin:
        yield f"admin     {endpoint.admin}"
    for model in settings.models:
        yield f"model     {model.name}{f' from {model.path}' if model.path.name != model.name else ''}"
    if settings.cascade is not None:
        yield f"cascade   {' → '.join(settings.cascade.models)}"
    if unprofiled:
        yield f"policy    {lacking(settings, unprofiled)}"
    yield f"files     {state} (logs, images, journal)"
    yield f"stop      {stopping(state)}"


def lacking(settings: SuiteSettings, unprofiled: Sequence[str]) -> str:
    """Return that the policy waits for profiles, and the command that measures them."""
    paths = {model.name: _argument(model) for model in settings.models}
    files = {name: f"{name}-cost.json" for name in unprofiled}
    measured = (f"pentimento profile cost {paths.get(name, name)} --out {file}" for name, file in files.items())
    flags = " ".join(f"--profiles {file}" for file in files.values())
    waits = f"{settings.policy or 'the planned cascade'} lacks what {', '.join(unprofiled)} cost here"
    return (
        f"{waits}; the workers keep their models until then: `{' && '.join(measured)}`, then `pentimento up … {flags}`"
    )


def _argument(model: ModelDirectory) -> str:
    return model.name if model.path == WEIGHTS / model.name else shlex.quote(str(model.path))
