"""Open the console in Chromium over a real suite: pages' load times, bytes, errors and accessibility violations.

    python -m benchmarks.console

Every page, light and dark, at 1440 and at 390 pixels, each time in a new browser context without a cache. A page is
loaded once its data is shown. Bytes are all that the page requested. Errors are the page's output on the browser's
console; violations are axe's, by all its rules. One image is generated first, so that pages have data.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Any

from lab.fixtures.browser import running_browser, why_no_browser
from lab.runs.measure import at_most, counted, informative, measured, parse_options, publish
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.image_request import ImageRequest
from pentimento.sdk import Client
from pentimento.supervisor.local import LocalSuite, local_suite

PAGES = ("playground", "gallery", "cache", "fleet", "charts")
THEMES = ("light", "dark")
WIDTHS_PX = (1440, 390)
HEIGHT_PX = 900
PROMPT = "a red circle left of a blue square"
LOAD_LIMIT_S = 1.0
BYTES_LIMIT = 500_000


@dataclass
class PageView:
    """Store one page in one browser. `load_s` runs from the navigation until its data is shown."""

    page: str
    theme: str
    width_px: int
    load_s: float
    bytes_count: int
    errors: list[str]
    violations: list[str]

    @property
    def name(self) -> str:
        """Return the view's name."""
        return f"{self.page} {self.theme} {self.width_px}"


async def look(browser: Any, url: str, page_name: str, theme: str, width_px: int, audited: bool) -> PageView:
    """Open a page without a cache; run axe if `audited`."""
    size = {"width": width_px, "height": HEIGHT_PX}
    context = await browser.new_context(viewport=size, color_scheme=theme)
    try:
        page, errors, sizes = await context.new_page(), list[str](), list[asyncio.Task[int]]()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("requestfinished", lambda request: sizes.append(asyncio.ensure_future(transferred(request))))
        began_s = time.perf_counter()
        await page.goto(f"{url}#/{'' if page_name == 'playground' else page_name}")
        await page.wait_for_selector(f"main[data-ready={page_name}]")
        load_s = time.perf_counter() - began_s
        violations = await violations_of(page) if audited else []
        return PageView(page_name, theme, width_px, load_s, sum(await asyncio.gather(*sizes)), errors, violations)
    finally:
        await context.close()


async def transferred(request: Any) -> int:
    """Return the bytes of a response, headers included."""
    sizes = await request.sizes()
    return int(sizes["responseHeadersSize"] + sizes["responseBodySize"])


async def violations_of(page: Any) -> list[str]:
    """Return axe's violations."""
    from axe_playwright_python.async_playwright import Axe

    found = (await Axe().run(page)).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


async def look_at_all(url: str, rounds: int) -> list[list[PageView]]:
    """Open every page in order, `rounds` times; an additional first time runs axe and is not timed."""
    views = [(page, theme, width) for page in PAGES for theme in THEMES for width in WIDTHS_PX]
    async with running_browser() as browser:
        # a browser's first page waits for its start
        await look(browser, url, *views[0], audited=False)
        audited = [await look(browser, url, *view, audited=True) for view in views]
        return [audited, *[[await look(browser, url, *view, audited=False) for view in views] for _ in range(rounds)]]


def generate_one(suite: LocalSuite) -> None:
    with Client(suite.endpoint.frontdoor) as client:
        client.generate(ImageRequest(PROMPT, num_inference_steps=12))


def main() -> int:
    options = parse_options("console", __doc__)
    if why := why_no_browser():
        raise FailedPrecondition("NO_BROWSER", why)
    with local_suite(["--http", "127.0.0.1:0"]) as suite:
        generate_one(suite)
        audited, *timed = asyncio.run(look_at_all(f"http://{suite.endpoint.http}/", 2 if options.quick else 10))
    all_looks = [*audited, *(one for each in timed for one in each)]
    loads = [(one.name, one.load_s) for each in timed for one in each]
    slowest = max(PAGES, key=lambda page: statistics.median(one for name, one in loads if name.startswith(page)))
    errors = [f"{one.name}: {error}" for one in all_looks for error in one.errors]
    violations = [f"{one.name}: {violation}" for one in audited for violation in one.violations]
    of_slowest = [load_s for name, load_s in loads if name.startswith(slowest)]
    figures = [
        measured(f"load, slowest page ({slowest}), median", of_slowest, statistics.median, at_most(LOAD_LIMIT_S, "s")),
        measured("load, all pages, the longest", [one for _, one in loads], max, informative("s")),
        counted("console errors", len(errors), len(all_looks), at_most(0)),
        counted("axe violations", len(violations), max(len(audited), len(violations)), at_most(0)),
        measured(
            "bytes of a page, the largest", [one.bytes_count for one in audited], max, at_most(BYTES_LIMIT, "bytes")
        ),
        *(
            measured(f"load, {page}, median", seconds, statistics.median, informative("s"))
            for page in PAGES
            if (seconds := [one for name, one in loads if name.startswith(page)])
        ),
    ]
    return publish(options, figures, notes={"rounds": len(timed)})


if __name__ == "__main__":
    raise SystemExit(main())
