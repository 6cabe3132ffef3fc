"""Test the console in tabs of a real Chromium that stay open for long, or change pages fast."""

import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from tests.integration.edge.browsers import IN_A_BROWSER, console_browser, window

pytestmark = IN_A_BROWSER
# Object URLs that the tab holds.
KEEP_ADDRESSES = """
    window.held = new Set();
    const [create, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
    URL.createObjectURL = (bytes) => { const made = create.call(URL, bytes); window.held.add(made); return made; };
    URL.revokeObjectURL = (address) => { window.held.delete(address); revoke.call(URL, address); };
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[tuple[Any, str]]:
    async with console_browser() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: tuple[Any, str]) -> AsyncIterator[Any]:
    """Open a tab without a page."""
    async with window(browser) as context:
        yield await context.new_page()


async def test_a_page_that_was_left_before_it_had_loaded_keeps_no_other_one_looking(page: Any) -> None:
    late: list[Any] = []
    await page.route("**/gallery.js", lambda route: late.append(route))
    looks: list[str] = []
    page.on("request", lambda request: looks.append(request.url) if request.url.endswith("/data/status") else None)
    await page.clock.install()
    await page.goto("/")
    await page.wait_for_selector("main[data-ready=playground]")

    async with page.expect_request("**/gallery.js"):
        await page.get_by_role("link", name="Gallery").click()
    await page.get_by_role("link", name="Fleet").click()
    await page.wait_for_selector("main[data-ready=fleet]")
    await late[0].continue_()
    await page.evaluate("import('/console/static/gallery.js').then(() => null)")
    await page.get_by_role("link", name="Playground").click()
    await page.wait_for_selector("main[data-ready=playground]")
    looks.clear()
    await page.clock.run_for(60_000)

    assert looks == []


async def test_failed_page_of_earlier_images_is_reported_and_retried(page: Any) -> None:
    answers = [
        {"requests": [{"request_id": "r-1", "accepted_at_ms": 1}], "next_page_token": "more"},
        None,
        {"requests": [{"request_id": "r-2", "accepted_at_ms": 1}], "next_page_token": ""},
    ]

    async def answer(route: Any) -> None:
        found = answers.pop(0)
        await (route.abort() if found is None else route.fulfill(body=json.dumps(found)))

    await page.route("**/data/requests?*", answer)
    await page.goto("/#/gallery")
    more = page.get_by_role("button", name="Earlier images")
    await more.click()
    await page.get_by_text("this deployment cannot be reached").wait_for()
    await more.click()
    await page.wait_for_selector("a[href='#/image/r-2']")

    assert await page.get_by_text("this deployment cannot be reached").count() == 0


async def test_tab_holds_only_bytes_of_shown_images(page: Any) -> None:
    await page.add_init_script(KEEP_ADDRESSES)
    await page.goto("/")
    held = []
    for count in (1, 3, 1):
        await page.get_by_label("Prompt", exact=True).fill(f"{count} circles")
        await page.get_by_role("spinbutton", name="Images").fill(str(count))
        await page.get_by_role("button", name="Generate", exact=True).click()
        told = "The image is finished." if count == 1 else f"{count} of {count} images are finished."
        await page.wait_for_function("told => document.getElementById('told').textContent === told", arg=told)
        held.append(await page.evaluate("window.held.size"))

    assert held == [1, 3, 1]


async def test_file_changed_after_choice_is_reported(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    Image.new("RGB", (64, 64), "red").save(file)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/generate") else None)
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    await page.get_by_text("More").click()
    await page.get_by_label("Start from an image").set_input_files(file)
    await page.get_by_label("Region to change").wait_for()

    Image.new("RGB", (64, 64), "blue").save(file)
    os.utime(file, (1, 1))
    await page.get_by_role("button", name="Generate", exact=True).click()
    await page.get_by_text("choose it again").wait_for()
    told_and_sent = await page.get_by_role("alert").count(), list(sent)
    await page.get_by_label("Start from an image").set_input_files(file)
    async with page.expect_request("**/generate"):
        await page.get_by_role("button", name="Generate", exact=True).click()

    assert told_and_sent == (1, [])
    assert await page.get_by_text("choose it again").count() == 0


async def test_number_between_steps_of_its_field_is_sent(page: Any) -> None:
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    await page.get_by_label("Guidance").fill("1.55")
    async with page.expect_request("**/generate") as asked:
        await page.get_by_role("button", name="Generate", exact=True).click()

    assert (await asked.value).post_data_json["guidance_scale"] == 1.55


async def test_invalid_field_is_shown_even_in_closed_section(page: Any) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/generate") else None)
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    await page.get_by_label("Steps").fill("1.5")
    await page.get_by_role("button", name="Generate", exact=True).click()
    halves = await page.evaluate("document.activeElement.value")
    await page.get_by_label("Steps").fill("1")

    await page.get_by_text("More").click()
    await page.get_by_label("Width in pixels").fill("3")
    await page.get_by_text("More").click()
    await page.get_by_role("button", name="Generate", exact=True).click()
    await page.get_by_label("Width in pixels").wait_for()

    assert (halves, await page.evaluate("document.activeElement.value"), sent) == ("1.5", "3", [])


SPEC = {
    "prompt": "a circle",
    "negative_prompt": "",
    "model": "tiny",
    "num_inference_steps": 4,
    "guidance_scale": 3,
    "width_px": 64,
    "height_px": 64,
    "seed": "7",
    "scheduler": "ddim",
    "loras": [],
    "controlnets": [],
    "init_image": None,
}


@pytest.mark.parametrize("init_image", [None, {"strength": 0.6}])
async def test_regenerated_image_does_not_start_from_another_image(
    page: Any, init_image: dict[str, Any] | None, tmp_path: Path
) -> None:
    file = tmp_path / "image.png"
    Image.new("RGB", (64, 64), "red").save(file)
    await page.goto("/")
    await page.get_by_text("More").click()
    await page.get_by_label("Start from an image").set_input_files(file)
    await page.get_by_label("Region to change").wait_for()

    await page.goto("/#/gallery")
    await page.wait_for_selector("main[data-ready=gallery]")
    again = "spec => import('/console/static/playground.js').then((playground) => playground.askAgain(spec))"
    await page.evaluate(again, {**SPEC, "init_image": init_image})
    await page.wait_for_selector("main[data-ready=playground]")
    told = await page.get_by_text("was generated from another one").count()
    async with page.expect_request("**/generate") as asked:
        await page.get_by_role("button", name="Generate", exact=True).click()

    assert "image" not in (await asked.value).post_data_json
    # No copy of the start image is stored: only the user can choose it again.
    assert told == (0 if init_image is None else 1)


async def test_pasted_prompt_is_sent_unchanged_at_any_length(page: Any) -> None:
    """The deployment decides whether a prompt is too long: a browser that cuts it would hide the error."""
    pasted = "a red circle " * 1000
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).focus()
    await page.keyboard.insert_text(pasted)
    async with page.expect_request("**/generate") as asked:
        await page.get_by_role("button", name="Generate", exact=True).click()

    assert (await asked.value).post_data_json["prompt"] == pasted
    await page.get_by_role("alert").get_by_text("must have at most 8192 bytes of UTF-8").wait_for()


async def test_a_prompt_is_written_and_shown_in_the_direction_of_its_script(page: Any) -> None:
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).fill("دائرة حمراء")
    await page.get_by_role("button", name="Generate", exact=True).click()
    shown = page.locator("article.image p.prompt")
    await shown.wait_for()

    direction = "element => getComputedStyle(element).direction"
    assert await page.get_by_label("Prompt", exact=True).evaluate(direction) == "rtl"
    assert await shown.evaluate(direction) == "rtl"


async def test_console_works_without_browser_storage(page: Any) -> None:
    refusing = "{ get() { throw new DOMException('denied', 'SecurityError'); } }"
    for name in ("sessionStorage", "localStorage"):
        await page.add_init_script(f"Object.defineProperty(window, '{name}', {refusing});")
    errors: list[Any] = []
    page.on("pageerror", lambda error: errors.append(error))
    await page.goto("/")
    await page.get_by_label("Prompt", exact=True).fill("a red circle")
    await page.get_by_label("Theme").select_option("dark")
    await page.get_by_role("button", name="Generate", exact=True).click()
    await page.locator("article.image").wait_for()

    assert errors == []


async def test_image_shown_again_stays_readable_after_many_others(page: Any) -> None:
    image = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(image, "PNG")
    await page.route("**/requests/*/image", lambda route: route.fulfill(body=image.getvalue()))
    await page.goto("/")
    again = """async () => {
        const { imageOf } = await import("/console/static/api.js");
        for (let index = 0; index < 200; index += 1) await imageOf(`r-${index}`);
        const shown = await imageOf("r-0");
        await imageOf("its-ancestor");
        const image = new Image();
        image.src = shown;
        return image.decode().then(() => image.naturalWidth, String);
    }"""

    assert await page.evaluate(again) == 3


async def test_charts_continue_after_edge_clock_moves_back(page: Any) -> None:
    totals = dict.fromkeys(("accepted", "completed", "failed", "rejected", "late", "scored", "deferred", "run"), 0)
    rest = {"epoch": "f 1", "saved": 0, "latencies": [], "starts": [], "workers": {}, "thresholds": {}, "admission": 1}
    times = {"0": [1_000_000, 1_040_000], "1040000": [1_010_000, 1_020_000]}
    asked: list[str] = []

    async def answer(route: Any) -> None:
        after = route.request.url.partition("after=")[2]
        asked.append(after)
        told = [{"at": at, **totals, **rest} for at in times.get(after, ())]
        await route.fulfill(body=json.dumps({"interval_ms": 1, "samples": told}))

    await page.route("**/data/history?*", answer)
    await page.goto("/#/charts")
    async with page.expect_request("**/data/history?after=1020000"):
        pass
    shown = await page.evaluate("import('/console/static/looks.js').then((looks) => looks.samples.map(({ at }) => at))")

    assert asked[:2] == ["0", "1040000"]
    assert shown == [1_000_000, 1_010_000, 1_020_000]


async def opened_with(page: Any, *models: str) -> None:
    """Open the playground of a deployment with these models, each with the limits of the real one."""

    async def answer(route: Any) -> None:
        document = await (await route.fetch()).json()
        one = document["models"][0]
        document["models"] = [{**one, "name": model} for model in models]
        await route.fulfill(json=document)

    await page.route("**/data/deployment", answer)
    await page.goto("/")
    await page.wait_for_selector("main[data-ready=playground]")


@pytest.mark.parametrize(("models", "chosen"), [((), ""), (("tiny",), "tiny"), (("tiny", "light"), "")])
async def test_the_suites_choice_is_offered_as_the_model(page: Any, models: tuple[str, ...], chosen: str) -> None:
    """The automatic choice is the default with several models, because a cascade may use one after another."""
    await opened_with(page, *models)
    offered = await page.get_by_label("Model").locator("option").evaluate_all("all => all.map((one) => one.value)")
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    async with page.expect_request("**/data/generate") as asked:
        await page.get_by_role("button", name="Generate", exact=True).click()

    assert offered == ["", *models]
    assert (await asked.value).post_data_json.get("model", "") == chosen


async def test_error_is_shown_next_to_the_button(page: Any) -> None:
    error = {
        "message": "model: there is no such model",
        "type": "not_found_error",
        "param": "model",
        "code": "UNKNOWN_MODEL",
    }
    await page.route("**/data/generate", lambda route: route.fulfill(status=404, json={"error": error}))
    await opened_with(page)
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    await page.get_by_role("button", name="Generate", exact=True).click()

    said = page.locator("form.generate .actions").get_by_role("alert")
    await said.wait_for()

    assert await said.inner_text() == "model: there is no such model\nUNKNOWN_MODEL"


async def test_image_button_and_progress_are_visible_with_open_form(page: Any) -> None:
    await page.set_viewport_size({"width": 1440, "height": 900})
    await opened_with(page, "tiny", "light")
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Prompt", exact=True).fill("a circle")
    await page.get_by_role("button", name="Generate", exact=True).click()
    await page.locator("form.generate .news", has_text="Finished").wait_for()

    for top_px in ("0", "document.body.scrollHeight"):
        await page.evaluate(f"scrollTo(0, {top_px})")
        for place in (".stage .frame", "form.generate .news", "form.generate button.main"):
            box = await page.locator(place).first.bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= 900, (top_px, place, box)
