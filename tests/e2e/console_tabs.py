"""Open the console in tabs of a real Chromium."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.generation import FromNoise
from pentimento.domain.image_request import ImageRequest

GUARD_MS = 60_000
PROMPT, STEPS = "a red circle left of a blue square", "12"
SHOWN_REQUEST = """(before) => {
    const shown = document.querySelector("article.image .facts code")?.textContent;
    return shown && shown !== before ? shown : null;
}"""
MARKED_SHARE = """([least, most]) => {
    const share = parseInt(document.querySelector("fieldset.mask > p.hint").textContent) || 0;
    return least <= share && share <= most;
}"""


@dataclass
class Console:
    """Hold the console's address, its browser, and clients of its frontdoor."""

    url: str
    browser: Any
    operator: FrontdoorClient
    client: ImageClient

    @asynccontextmanager
    async def tab(self, theme: str = "light", width_px: int = 1440) -> AsyncIterator["Tab"]:
        """Open a new tab at the playground; an error in its console fails the test."""
        size = {"width": width_px, "height": 900}
        context = await self.browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
        context.set_default_timeout(GUARD_MS)
        tab = Tab(await context.new_page(), self.url)
        tab.page.on("console", tab.hear)
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        try:
            await tab.open("playground")
            yield tab
        finally:
            await context.close()
        assert tab.complaints == []

    async def until(self, **counts: int) -> None:
        """Return once the frontdoor's status has these totals, and runs nothing."""
        async with asyncio.timeout(GUARD_MS / 1000):
            while True:
                status = await self.operator.status()
                found = {name: getattr(status, name) for name in counts}
                if found == counts and not any(pool.running_count for pool in status.pools):
                    return
                await asyncio.sleep(0.05)

    async def until_cached(self, request: ImageRequest) -> None:
        """Return once the request would start from the cache: an entry is committed after its image was answered."""
        async with asyncio.timeout(GUARD_MS / 1000):
            while True:
                start = (await self.client.explain(request)).route.start
                if not isinstance(start, FromNoise):
                    return
                await asyncio.sleep(0.05)


@dataclass
class Tab:
    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def hear(self, said: Any) -> None:
        """Record an error, except for a missing image: other tests use the suite and evict images."""
        if said.type == "error" and not said.location["url"].endswith("/image"):
            self.complaints.append(said.text)

    async def open(self, name: str) -> None:
        await self.page.goto(f"{self.url}#/{'' if name == 'playground' else name}")
        await self.page.wait_for_selector(f"main[data-ready={name}]")

    async def ask(self, steps: str = STEPS) -> None:
        await self.page.get_by_label("Prompt", exact=True).fill(PROMPT)
        await self.page.get_by_label("Steps").fill(steps)
        await self.page.get_by_role("button", name="Generate", exact=True).click()

    async def finished(self, before: str = "") -> str:
        """Return the request of the shown image, once it differs from `before`."""
        found = await self.page.wait_for_function(SHOWN_REQUEST, arg=before)
        return str(await found.json_value())

    async def marked(self, least: int, most: int) -> None:
        """Wait until the marked share of an image is between two percentages."""
        await self.page.wait_for_function(MARKED_SHARE, arg=[least, most])

    async def violations(self) -> list[str]:
        """Return axe's findings on the current page."""
        from axe_playwright_python.async_playwright import Axe

        found = (await Axe().run(self.page)).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]

    async def is_too_wide(self) -> bool:
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))
