"""A real Chromium without a window, for tests of pages.

The program is what `FOREBAY_CHROMIUM` names, else the first of the usual names on the path. Its profile is a fresh
directory that playwright removes. Used on the test's own thread, and no asyncio loop may run there meanwhile.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: As root there is no sandbox; and nothing that a browser does by itself may leave the machine.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """The program's path. Skips the test where there is none, but fails in CI where it could be installed."""
    given = os.environ.get("FOREBAY_CHROMIUM")
    found = given or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    reason = f"needs a browser: install chromium, or let FOREBAY_CHROMIUM name one of {', '.join(NAMES)}"
    if os.environ.get("CI") and shutil.which("apt-get") and os.getuid() == 0:
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """A running browser."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield started
        finally:
            started.close()
