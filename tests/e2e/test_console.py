"""Test the console in a real Chromium over a real suite: pages in both themes and widths; images generated, stopped,
left."""

import base64
import io
import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image, ImageDraw

from lab.fixtures.browser import running_browser, why_no_browser
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.image_request import AskedLora, CacheMode, Completed, ImageRequest
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import RpcChannelSettings
from pentimento.supervisor.local import LocalSuite
from tests.e2e.console_tabs import PROMPT, STEPS, Console
from tests.support.edge_packages import missing

WHY_NOT = why_no_browser() or ", ".join(missing())
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.asyncio(loop_scope="module")]
PAGES = ("playground", "gallery", "cache", "fleet", "charts")
# The observer sees every preview, however short it is shown.
COUNT_PREVIEWS = """() => {
    window.previewCount = 0;
    const count = (node) => { if (node.dataset?.preview) window.previewCount += 1; };
    const watching = new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach(count)));
    watching.observe(document.getElementById("main"), { childList: true, subtree: true });
}"""
# Enough steps to look at a running request.
LONG = "1000"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(suite: LocalSuite) -> AsyncIterator[Console]:
    from lab.fixtures.edge_suite import running_edge

    places = suite.endpoint
    others = {"controller_address": places.controller, "gateway_address": places.gateway}
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with (
            running_edge(Path(folder), places.frontdoor, **others) as edge,
            running_browser() as browser,
            open_channel(places.frontdoor, RpcChannelSettings()) as channel,
        ):
            url = f"http://{edge.listener.address}/"
            yield Console(url, browser, FrontdoorClient(channel), ImageClient(channel))


async def test_playground_shows_previews_image_and_explanation(console: Console) -> None:
    async with console.tab() as tab:
        await tab.page.evaluate(COUNT_PREVIEWS)
        await tab.ask()
        first = await tab.finished()
        assert await tab.page.evaluate("window.previewCount") >= 1

        picture = tab.page.locator("article.image")
        shown = picture.locator(".frame img").first
        assert await shown.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        assert await picture.locator(".waterfall li").count() >= 2
        assert await tab.violations() == []

        # The repeated prompt starts from the cached entry, shown with the new image.
        await console.until_cached(ImageRequest(PROMPT, num_inference_steps=int(STEPS)))
        await tab.page.get_by_role("button", name="Vary").click()
        second = await tab.finished(first)
        await tab.page.locator(".ancestor img").wait_for()
        assert (await tab.page.locator(".verdict .chip").inner_text()).startswith("Hit · latent, K = ")
        assert await tab.violations() == []

        await tab.page.get_by_role("button", name="Replay").click()
        await tab.finished(second)
        assert "the same bytes" in await tab.page.locator(".facts").inner_text()

        await tab.open("cache")
        await tab.page.get_by_label("Prompt", exact=True).fill(PROMPT)
        await tab.page.get_by_label("Steps").fill(STEPS)
        await tab.page.get_by_role("button", name="Look up").click()
        await tab.page.locator(".tile img").first.wait_for()
        assert (await tab.page.locator(".verdict .chip").inner_text()).startswith("Hit")
        assert await tab.violations() == []


@pytest.mark.parametrize("width_px", [1440, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_opens_and_can_be_used_by_all(console: Console, theme: str, width_px: int) -> None:
    async with console.tab(theme, width_px) as tab:
        for name in PAGES:
            await tab.open(name)
            assert (name, await tab.violations()) == (name, [])
            assert not await tab.is_too_wide(), name


async def test_several_images_are_a_grid_with_an_explanation_each(console: Console) -> None:
    async with console.tab(width_px=390) as tab:
        await tab.page.get_by_label("Images").fill("3")
        await tab.ask("4")
        picks = tab.page.locator(".several button.pick")
        await picks.nth(2).wait_for()
        shown = []
        for number in range(3):
            await picks.nth(number).click()
            shown.append(await tab.page.locator(".facts code").inner_text())

        assert len(set(shown)) == 3 and {one.rpartition("-")[2] for one in shown} == {"0", "1", "2"}
        assert await tab.page.locator("button.pick[aria-pressed=true]").count() == 1
        assert await tab.violations() == []
        assert not await tab.is_too_wide()


async def test_mask_drawn_by_pointer_and_keys_is_sent_with_image(console: Console) -> None:
    async with console.tab(width_px=1440) as tab:
        page, sent = tab.page, list[dict[str, Any]]()
        page.on("request", lambda one: sent.append(one.post_data_json) if one.url.endswith("/generate") else None)
        await page.get_by_text("More").click()
        await page.get_by_label("Start from an image").set_input_files(turned_jpeg())
        canvas = page.get_by_label("Region to change")
        await canvas.scroll_into_view_if_needed()

        # Draw a line with the pointer and undo it; then draw to the right with keys, and invert the mask.
        box = await canvas.bounding_box()
        await page.mouse.move(box["x"] + 5, box["y"] + 5)
        await page.mouse.down()
        await page.mouse.move(box["x"] + 60, box["y"] + 5, steps=4)
        await page.mouse.up()
        await tab.marked(1, 40)
        await canvas.focus()
        await page.keyboard.press("Control+z")
        await tab.marked(0, 0)
        await page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        await page.keyboard.down(" ")
        for _ in range(12):
            await page.keyboard.press("ArrowRight")
        await page.keyboard.up(" ")
        await page.get_by_role("button", name="Invert").click()
        await tab.marked(60, 99)
        assert await tab.violations() == []

        await tab.ask("4")
        await tab.finished()
        mask = Image.open(io.BytesIO(base64.b64decode(sent[0]["mask"]))).convert("L")
        places = [mask.getpixel(place) for place in ((2, 2), (32, 48), (50, 48), (62, 93), (8, 48))]
        assert (mask.size, places) == ((64, 96), [255, 0, 0, 255, 255])
        assert set(mask.tobytes()) == {0, 255}

        # A mask from a file replaces the drawn one; a full or empty mask is not sent.
        await page.get_by_label("Or a mask from a file").set_input_files(half_transparent())
        await tab.marked(50, 50)
        for wanted in (True, False):
            if not wanted:
                await page.get_by_role("button", name="Clear").click()
            before = await page.locator(".facts code").inner_text()
            await page.get_by_role("button", name="Generate", exact=True).click()
            await tab.finished(before)
            assert ("mask" in sent[-1]) is wanted
        assert "image" in sent[-1]


def turned_jpeg() -> dict[str, Any]:
    """Return a JPEG with the EXIF orientation "rotated": the console shows and masks it upright."""
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (96, 64), "red").save(buffer, "JPEG", exif=exif)
    return {"name": "turned.jpg", "mimeType": "image/jpeg", "buffer": buffer.getvalue()}


def half_transparent() -> dict[str, Any]:
    buffer, mask = io.BytesIO(), Image.new("RGBA", (96, 64), "black")
    mask.paste((0, 0, 0, 0), (0, 0, 48, 64))
    mask.save(buffer, "PNG")
    return {"name": "mask.png", "mimeType": "image/png", "buffer": buffer.getvalue()}


async def test_chosen_adapters_and_cache_mode_are_sent(console: Console) -> None:
    async with console.tab() as tab:
        page, sent = tab.page, list[dict[str, Any]]()
        page.on("request", lambda one: sent.append(one.post_data_json) if one.url.endswith("/generate") else None)
        await page.get_by_label("tiny-lora-neon", exact=True).check()
        await page.get_by_label("Weight of tiny-lora-neon").fill("0.5")
        await page.get_by_label("Cache").select_option("off")
        await page.get_by_label("ControlNet").select_option("tiny-controlnet-edges")
        assert await tab.violations() == []

        # A ControlNet needs an image: without one, no request is sent.
        image = page.get_by_label("Conditioning image")
        await tab.ask("4")
        assert (await image.evaluate("input => input.validity.valueMissing"), sent) == (True, [])

        await image.set_input_files(edges_png())
        await tab.ask("4")
        await tab.finished()
        (asked,) = sent
        (net,) = asked["controlnets"]
        assert (asked["cache"], asked["loras"]) == ("off", [{"name": "tiny-lora-neon", "scale": 0.5}])
        assert (net["name"], net["conditioning_scale"]) == ("tiny-controlnet-edges", 1)
        assert base64.b64decode(net["conditioning_image"]) == edges_png()["buffer"]
        told = await page.locator(".facts").inner_text()
        assert "tiny-lora-neon × 0.5" in told and "tiny-controlnet-edges × 1" in told


def edges_png() -> dict[str, Any]:
    """Draw a white square's outline in the model's size."""
    buffer, drawing = io.BytesIO(), Image.new("L", (64, 64))
    ImageDraw.Draw(drawing).rectangle((16, 16, 48, 48), outline=255)
    drawing.save(buffer, "PNG")
    return {"name": "edges.png", "mimeType": "image/png", "buffer": buffer.getvalue()}


async def test_gallery_image_is_generated_again_with_all_its_fields(console: Console) -> None:
    asked = ImageRequest(
        PROMPT,
        num_inference_steps=4,
        seed=2**64 - 1,
        scheduler="euler",
        prompt_syntax="a1111",
        loras=(AskedLora("tiny-lora-mosaic", 0.5),),
        cache=CacheMode.OFF,
    )
    *_, generated = [event async for event in console.client.generate(asked)]
    assert isinstance(generated, Completed)
    async with console.tab() as tab:
        page, sent = tab.page, list[dict[str, Any]]()
        page.on("request", lambda one: sent.append(one.post_data_json) if one.url.endswith("/generate") else None)
        await tab.open("gallery")
        await page.locator(f'a.tile[href="#/image/{generated.request_id}"]').click()
        await page.wait_for_selector("main[data-ready=image]")
        assert "18446744073709551615" in await page.locator(".facts").inner_text()
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Provenance").click()
        saved = Path(await (await download.value).path()).read_text()
        assert json.loads(saved)["spec"]["seed"] == 2**64 - 1

        await page.get_by_role("button", name="Generate another").click()
        await page.wait_for_selector("main[data-ready=playground]")
        await page.get_by_role("button", name="Generate", exact=True).click()
        await tab.finished(generated.request_id)
        (body,) = sent
        again = {name: body[name] for name in ("prompt", "seed", "scheduler", "prompt_syntax", "loras")}
        assert again == {
            "prompt": PROMPT,
            "seed": "18446744073709551615",
            "scheduler": "euler",
            "prompt_syntax": "a1111",
            "loras": [{"name": "tiny-lora-mosaic", "scale": 0.5}],
        }
        assert "18446744073709551615" in await page.locator(".facts").inner_text()


async def test_pages_of_missing_services_are_hidden(console: Console, suite: LocalSuite) -> None:
    from lab.fixtures.edge_suite import running_edge

    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with running_edge(Path(folder), suite.endpoint.frontdoor) as edge:
            alone = replace(console, url=f"http://{edge.listener.address}/")
            async with alone.tab() as tab, console.tab() as whole:
                pages = [await one.page.locator("#pages a").all_inner_texts() for one in (tab, whole)]
                caches = [await one.page.get_by_label("Cache").count() for one in (tab, whole)]

    assert pages == [["Playground", "Gallery"], ["Playground", "Gallery", "Cache", "Fleet", "Charts"]]
    assert caches == [0, 1]


async def test_stop_frees_the_worker(console: Console) -> None:
    before = (await console.operator.status()).cancelled_count
    async with console.tab() as tab:
        await tab.ask(LONG)
        await tab.page.wait_for_selector("img[data-preview]")
        # Another page leaves the request running.
        await tab.open("gallery")
        await tab.open("playground")
        await tab.page.get_by_role("button", name="Stop").click()
        await tab.page.get_by_text("Stopped: the worker was freed.").wait_for()
        await console.until(cancelled_count=before + 1)


async def test_a_tab_that_closes_frees_the_worker(console: Console) -> None:
    before = (await console.operator.status()).cancelled_count
    async with console.tab() as tab:
        await tab.ask(LONG)
        await tab.page.wait_for_selector("img[data-preview]")
    await console.until(cancelled_count=before + 1)


async def test_keyboard_generates_and_chosen_theme_persists(console: Console) -> None:
    async with console.tab("dark") as tab:
        page = tab.page
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = await page.evaluate(ground)
        await page.get_by_label("Theme").select_option("light")
        light = await page.evaluate(ground)
        await page.reload()
        await page.wait_for_selector("main[data-ready]")
        assert light != dark
        assert await page.evaluate(ground) == light

        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
        await page.get_by_label("Prompt", exact=True).fill(PROMPT)
        await page.get_by_label("Steps").fill("4")
        await page.keyboard.press("Control+Enter")
        finished = await tab.finished()

        # The prompt and the image remain after visits to other pages.
        await tab.open("charts")
        await tab.open("playground")
        assert await page.get_by_label("Prompt", exact=True).input_value() == PROMPT
        assert await tab.finished() == finished


async def test_trusted_types_policy_blocks_inner_html(console: Console) -> None:
    async with console.tab() as tab:
        done = await tab.page.evaluate(
            """() => {
                try { document.body.innerHTML = "<img src=x>"; } catch (error) { return error.name; }
                return "parsed";
            }"""
        )
        assert done == "TypeError"
        tab.complaints.clear()
