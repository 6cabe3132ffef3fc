"""Take the console's screenshots of docs/images: start a suite, generate images and open its pages in a Chromium.

    python scripts/console_images.py
    python scripts/console_images.py --all /tmp/console

With `--all DIR` every page is saved as PNG in both themes, at 1440 and at 390 pixels, for a review.
"""

import argparse
import asyncio
import io
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from lab.fixtures.browser import running_browser, why_no_browser
from pentimento.domain.image_request import ImageRequest
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import local_suite

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SUITE = ("--cascade", "tiny-light,tiny-heavy", "--adapters", "tiny", "--http", "127.0.0.1:0")
# A busy machine misses no hits.
ENVIRONMENT = {"PENTIMENTO_FRONTDOOR_PART_WAIT_FACTOR": "300"}
HEIGHT_PX = 1000
WIDTHS_PX = (1440, 390)
THEMES = ("light", "dark")
GUARD_MS = 120_000
COLOURS = 96
MOST_TRIES = 4
STEPS = 25
# The request of the shown image.
SHOWN_REQUEST = "() => document.querySelector('article.image .facts code')?.textContent ?? null"
PROMPT = "a red circle left of a blue square"
SHAPES = ("circle", "square", "triangle", "star")
COLOUR_NAMES = ("red", "blue", "green", "yellow")
PROMPTS = tuple(f"a {colour} {shape} on a white background" for colour in COLOUR_NAMES for shape in SHAPES)


@dataclass(frozen=True)
class Tab:
    """Hold a page of the console in a browser."""

    page: Any
    url: str

    async def open(self, name: str) -> None:
        await self.page.goto(f"{self.url}#/{'' if name == 'playground' else name}")
        await self.page.wait_for_selector(f"main[data-ready={name}]")

    async def generate(self, prompt: str, count: int = 1) -> None:
        """Generate images and wait until all are finished."""
        await self.page.get_by_label("Prompt", exact=True).fill(prompt)
        await self.page.get_by_label("Model").select_option("tiny-heavy")
        await self.page.get_by_label("Steps").fill(str(STEPS))
        await self.page.get_by_label("Images").fill(str(count))
        await self.press("Generate")

    async def press(self, name: str) -> None:
        """Press a button that generates, and wait until nothing is running."""
        before = await self.page.evaluate(SHOWN_REQUEST)
        await self.page.get_by_role("button", name=name, exact=True).click()
        await self.page.wait_for_function(
            f"before => ({SHOWN_REQUEST})() && ({SHOWN_REQUEST})() !== before", arg=before
        )
        await self.page.wait_for_selector("button.stop", state="hidden")

    async def mark(self) -> None:
        """Start from the shown image, and mark a part of it."""
        await self.page.get_by_role("button", name="Edit").click()
        canvas = self.page.get_by_label("Region to change")
        await canvas.scroll_into_view_if_needed()
        box = await canvas.bounding_box()
        places = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in ((0.62, 0.4), (0.8, 0.6))]
        await self.page.mouse.move(*places[0])
        await self.page.mouse.down()
        await self.page.mouse.move(*places[1], steps=8)
        await self.page.mouse.up()

    async def screenshot(self, part: str, *, whole: bool = False) -> bytes:
        """Return a PNG of the visible page, of a part, or of the whole page."""
        if part:
            return bytes(await self.page.locator(part).screenshot())
        # Images of other requests may still be loading.
        if not whole:
            await self.page.wait_for_load_state("networkidle")
        await self.page.evaluate("scrollTo(0, 0)")
        return bytes(await self.page.screenshot(full_page=whole))


async def playground(tab: Tab) -> None:
    await tab.open("playground")
    await tab.generate(PROMPT)
    # An image's cache entry is findable only a while after it.
    for _ in range(MOST_TRIES):
        if await tab.page.locator(".ancestor img").count():
            break
        await tab.press("Vary")


async def several(tab: Tab) -> None:
    await tab.open("playground")
    await tab.generate("a green star on a black background", 4)


async def mask(tab: Tab) -> None:
    await tab.open("playground")
    await tab.generate(PROMPT)
    await tab.mark()


async def cache(tab: Tab) -> None:
    await tab.open("cache")
    await tab.page.get_by_label("Prompt", exact=True).fill(PROMPT)
    await tab.page.get_by_label("Steps").fill(str(STEPS))
    await tab.page.get_by_role("button", name="Look up").click()
    await tab.page.locator(".tile img").first.wait_for()


def page_called(name: str) -> Callable[[Tab], Awaitable[None]]:
    async def opened(tab: Tab) -> None:
        await tab.open(name)
        await tab.page.locator(
            {"gallery": ".tile img", "fleet": "table", "charts": ".plot .line"}[name]
        ).first.wait_for()

    return opened


SCENES = {
    "playground": playground,
    "several": several,
    "mask": mask,
    "cache": cache,
    **{name: page_called(name) for name in ("gallery", "fleet", "charts")},
}
# Screenshots of the documentation: scene, theme, width, and the part of the page unless it is the upper one.
SHOWN = {
    "console-playground.png": ("playground", "light", 1440, ""),
    "console-mask.png": ("mask", "dark", 390, "fieldset.mask"),
    "console-several.png": ("several", "dark", 1440, ""),
    "console-fleet.png": ("fleet", "dark", 1440, ""),
    "console-charts.png": ("charts", "light", 1440, ""),
}


async def fill_suite(address: str) -> None:
    """Generate each prompt, and a variation of half of them, a few at the same time."""
    async with AsyncClient(address) as client:
        for start in range(0, len(PROMPTS), 4):
            prompts = PROMPTS[start : start + 4]
            again = [prompt.replace("a white", "white") for prompt in prompts[:2]]
            for group in (prompts, again):
                await asyncio.gather(
                    *(client.generate(ImageRequest(prompt, num_inference_steps=STEPS)) for prompt in group)
                )
                await asyncio.sleep(1)


async def look(
    browser: Any, url: str, scene: str, theme: str, width_px: int, part: str = "", *, whole: bool = False
) -> bytes:
    """Return a PNG of a scene."""
    size = {"width": width_px, "height": HEIGHT_PX}
    context = await browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
    context.set_default_timeout(GUARD_MS)
    try:
        tab = Tab(await context.new_page(), url)
        await SCENES[scene](tab)
        return await tab.screenshot(part, whole=whole)
    finally:
        await context.close()


def small(png: bytes) -> Image.Image:
    """Return an image with few colours, which are enough for a page of one theme."""
    return Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


async def take(url: str, everything: Path | None) -> None:
    """Write the screenshots."""
    async with running_browser() as browser:
        if everything is None:
            for name, view in SHOWN.items():
                small(await look(browser, url, *view)).save(IMAGES / name, optimize=True)
            return
        everything.mkdir(parents=True, exist_ok=True)
        for scene in SCENES:
            for theme in THEMES:
                for width_px in WIDTHS_PX:
                    png = await look(browser, url, scene, theme, width_px, whole=True)
                    (everything / f"{scene}-{theme}-{width_px}.png").write_bytes(png)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--all", type=Path, metavar="DIR", help="every page, theme and width there, instead of docs/images"
    )
    everything = parser.parse_args().all
    if why := why_no_browser():
        print(f"console_images: {why}", file=sys.stderr)
        return 1
    with local_suite(SUITE, environment=ENVIRONMENT) as suite:
        asyncio.run(fill_suite(suite.endpoint.frontdoor))
        asyncio.run(take(f"http://{suite.endpoint.http}/", everything))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
