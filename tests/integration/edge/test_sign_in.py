"""Test sign-in to the console in a real Chromium, over a frontdoor that requires tokens."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pentimento.domain.tenants import Role
from tests.integration.edge.browsers import IN_A_BROWSER, console_browser, window

pytestmark = IN_A_BROWSER
USER, OPERATOR, SERVICE = "the-users-token", "the-operators-token", "a-services-token"
KEPT = "({ tab: Object.values(sessionStorage), disk: Object.values(localStorage), cookie: document.cookie })"
COUNT_DIALOGS = """() => {
  window.most = 0;
  const count = () => { window.most = Math.max(window.most, document.querySelectorAll("dialog").length); };
  new MutationObserver(count).observe(document.body, { childList: true });
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened() -> AsyncIterator[tuple[Any, str]]:
    async with console_browser({USER: Role.USER, OPERATOR: Role.ADMIN, SERVICE: Role.SERVICE}) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def context(opened: tuple[Any, str]) -> AsyncIterator[Any]:
    """Return a window of a browser; `open_page` opens the console in it."""
    async with window(opened) as found:
        yield found


async def open_page(context: Any) -> Any:
    page = await context.new_page()
    await page.goto("/")
    return page


async def sign_in(page: Any, secret: str) -> None:
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Use token").click()


async def violations(page: Any) -> list[str]:
    from axe_playwright_python.async_playwright import Axe

    return [one["id"] for one in (await Axe().run(page)).response["violations"]]


async def test_wrong_token_is_reported_and_right_one_opens_console(context: Any) -> None:
    page = await open_page(context)
    await page.get_by_text("This deployment requires a token.").wait_for()
    assert await violations(page) == []

    await sign_in(page, "some-token")
    await page.get_by_text("does not know the token").wait_for()
    assert await page.get_by_label("Token").input_value() == ""

    await sign_in(page, USER)
    await page.get_by_label("Prompt", exact=True).wait_for()
    assert await page.locator("dialog").count() == 0
    await page.get_by_label("Prompt", exact=True).fill("a red circle")
    await page.get_by_role("button", name="Generate", exact=True).click()
    await page.locator("article.image").wait_for()


async def test_dialog_of_malformed_token_gives_way_to_next(context: Any) -> None:
    """A token copied from a chat may end in an invisible character. It is refused without a call."""
    page = await open_page(context)
    await page.get_by_label("Token").wait_for()
    await page.evaluate(COUNT_DIALOGS)
    await sign_in(page, f"{USER}\u200b")
    await page.get_by_text("does not know the token").wait_for()

    await sign_in(page, USER)
    await page.get_by_label("Prompt", exact=True).wait_for()
    assert await page.evaluate("most") == 1


async def test_token_stays_in_the_tab_and_goes_with_signing_out(context: Any) -> None:
    page = await open_page(context)
    await sign_in(page, USER)
    await page.get_by_label("Prompt", exact=True).wait_for()
    kept = await page.evaluate(KEPT)
    await page.reload()
    await page.get_by_label("Prompt", exact=True).wait_for()

    assert kept == {"tab": [USER], "disk": [], "cookie": ""}
    assert await context.cookies() == []
    other = await open_page(context)
    await other.get_by_text("This deployment requires a token.").wait_for()
    assert await other.evaluate(KEPT) == {"tab": [], "disk": [], "cookie": ""}

    await page.get_by_role("button", name="Signed in").click()
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_text("This deployment requires a token.").wait_for()
    assert await page.evaluate(KEPT) == {"tab": [], "disk": [], "cookie": ""}


async def test_charts_are_an_operators(context: Any) -> None:
    page = await open_page(context)
    await sign_in(page, USER)
    await page.get_by_label("Prompt", exact=True).wait_for()
    await page.goto("/#/charts")
    await page.get_by_text("This page needs an operator's token.").wait_for()

    await page.get_by_role("button", name="Signed in").click()
    await sign_in(page, OPERATOR)
    # The refused page waits for the new token, and also has charts.
    await page.wait_for_selector("main[data-ready=charts]:not(:has(.notice)) .plot")
    assert await page.get_by_text("operator's token").count() == 0


@pytest.mark.parametrize(
    ("secret", "offered"),
    [
        (USER, ["Playground", "Gallery"]),
        (OPERATOR, ["Playground", "Gallery", "Fleet", "Charts"]),
        (SERVICE, ["Fleet", "Charts"]),
    ],
)
async def test_console_offers_the_pages_of_the_tokens_role(context: Any, secret: str, offered: list[str]) -> None:
    page = await open_page(context)
    await sign_in(page, secret)
    await page.get_by_role("button", name="Signed in").wait_for()
    await page.get_by_role("link", name=offered[-1]).wait_for()

    assert await page.locator("#pages a").all_inner_texts() == offered
    assert await page.locator("dialog").count() == 0


async def test_dialog_closed_by_keyboard_makes_no_call(context: Any) -> None:
    page = await open_page(context)
    await page.get_by_label("Token").wait_for()
    asked = list[str]()
    page.on("request", lambda one: asked.append(one.url) if "/console/data/" in one.url else None)

    await page.keyboard.press("Escape")
    await page.wait_for_selector("dialog", state="detached")

    assert asked == []
    assert await page.evaluate(KEPT) == {"tab": [], "disk": [], "cookie": ""}
