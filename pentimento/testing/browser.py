"""A real Chromium, where this machine has one: for tests and benchmarks of the console."""

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Browser

# As Debian and others call it; the first one that is there.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGES = ("playwright", "axe_playwright_python")


def chromium_program() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def why_no_browser() -> str:
    """Return what is missing for a browser to be driven; "" where nothing is."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if chromium_program() else f"no browser: none of {', '.join(PROGRAMS)} is here"


@asynccontextmanager
async def running_browser() -> AsyncIterator["Browser"]:
    """Start one without a window; it ends with the block."""
    from playwright.async_api import async_playwright

    # Its own sandbox needs a user other than root, and containers need their shared memory left alone.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_program(), args=flags)
        try:
            yield browser
        finally:
            await browser.close()
