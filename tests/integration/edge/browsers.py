"""Open the console in a real Chromium: the tests of a module share an edge, and each has its own window."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.browser import running_browser, why_no_browser
from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker, serve
from pentimento.domain.tenants import Role
from pentimento.rpc import token_entry
from tests.support.patient_connections import be_patient

WHY_NOT = why_no_browser()
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.asyncio(loop_scope="module"),
]
GUARD_MS = 60_000


@asynccontextmanager
async def console_browser(roles: Mapping[str, Role] | None = None, **settings: Any) -> AsyncIterator[tuple[Any, str]]:
    """Yield a browser and the console's address. `roles`: tokens; its controller is away; `settings`: the
    frontdoor's."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as path, pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        folder = Path(path)
        if roles:
            settings["token_file"] = folder / "tokens.toml"
            entries = (token_entry(secret, "acme", frozenset({role})) for secret, role in roles.items())
            settings["token_file"].write_text("\n".join(entries))
        worker = await serve(PacedWorker("w1"), f"unix:{folder / 'w1'}")
        async with (
            running_suite(folder, **settings),
            running_edge(folder, f"unix:{folder / 'f'}", controller_address=f"unix:{folder / 'c'}") as edge,
            running_browser() as browser,
        ):
            yield browser, f"http://{edge.listener.address}"
        await worker.stop()


@asynccontextmanager
async def window(opened: tuple[Any, str]) -> AsyncIterator[Any]:
    browser, url = opened
    found = await browser.new_context(base_url=url, reduced_motion="reduce")
    found.set_default_timeout(GUARD_MS)
    yield found
    await found.close()
