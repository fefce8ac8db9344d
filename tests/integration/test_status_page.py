"""The status page in a real browser, over a real daemon that real loaders read through."""

import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect
from prometheus_client.parser import text_string_to_metric_families

import forebay
from tests.server.checkpoints.calls import node_of
from tests.server.checkpoints.desks import attempt
from tests.server.daemons import Daemon, daemon
from tests.support import browser as browsers
from tests.support.processes import eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

SECONDS = 30
HOSTILE = "<img src=x onerror=document.title='owned'>.bin"
LONG = f"{'a-very-long-name-without-a-break-' * 6}.bin"
SAMPLES, LENGTH = 64, 256


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browsers.browser(browsers.chromium()) as running:
        yield running


@dataclass
class Seen:
    """A page, and what its browser was asked for and complained of."""

    page: Page
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def says(self, selector: str, pattern: str) -> None:
        """Waits until the element's text matches."""
        expect(self.page.locator(selector)).to_have_text(re.compile(pattern), timeout=SECONDS * 1000)


@contextmanager
def opened(
    chromium: Browser, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
) -> Iterator[Seen]:
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    try:
        seen = Seen(context.new_page())
        seen.page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.goto(url)
        yield seen
    finally:
        context.close()


def http_of(running: Daemon) -> str:
    """Where the daemon's ready line says that the page is."""
    line = next(line for line in running.process.output().splitlines() if line.startswith('{"socket"'))
    return str(json.loads(line)["http"])


def put_tokens(bucket: Bucket, *names: str) -> None:
    for number, name in enumerate(names):
        bucket.put(f"data/{name}", np.full(SAMPLES * LENGTH, number, np.int32).tobytes())


class Gate:
    """Holds the requests for some objects until it is opened."""

    def __init__(self, is_held: Callable[[str], bool]) -> None:
        self.open = threading.Event()
        self._is_held = is_held

    def __call__(self, request: Request) -> Fault | None:
        if request.method == "GET" and self._is_held(request.key):
            self.open.wait(SECONDS)
        return None


class Trainer:
    """Reads epochs of a dataset on a thread until it is closed."""

    def __init__(self, source: str, address: Path) -> None:
        spec = forebay.Tokens(sequence_length=LENGTH, dtype="int32", piece_bytes=SAMPLES * LENGTH * 4)
        dataset = forebay.StreamingDataset(source, format=spec, address=str(address), shuffle=False)
        self._loader = forebay.DataLoader(dataset, batch_size=16)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            for _ in self._loader:
                if self._closing.wait(0.05):
                    return

    def close(self) -> None:
        self._closing.set()
        self._thread.join(SECONDS)
        self._loader.close()


@contextmanager
def trainer(source: str, address: Path) -> Iterator[Trainer]:
    started = Trainer(source, address)
    try:
        yield started
    finally:
        started.close()


def test_the_page_shows_by_itself_what_the_daemon_does_and_for_whom(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy, chromium: Browser
) -> None:
    put_tokens(bucket, "00.bin", "01.bin", "02.bin", HOSTILE, LONG)
    gate = counting_proxy.fault = Gate(lambda key: key.endswith((HOSTILE, LONG)))
    env = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, "--http", "127.0.0.1:0", env=env) as running, opened(chromium, http_of(running)) as seen:
        page = seen.page
        seen.says("#state", "^Serving$")
        seen.says("#sessions-empty", "No sessions yet.*unix:.*/s")
        assert "Nothing is cached yet" in seen.text("#datasets-empty")
        assert "Nothing is being fetched" in seen.text("#fills-empty")
        page.evaluate("window.marked = true")
        with trainer(bucket.uri("data"), running.socket):
            seen.says("#session-count", "^1$")
            seen.says("#fills tr:has-text('onerror') .name", f"^{re.escape(HOSTILE)}$")
            seen.says("#fills tr:has-text('onerror')", "rank 0 of 1")
            seen.says("#datasets tr", f"data.*{bucket.name}/")
            seen.says("#sessions tr", r"stalled \d+")
            seen.says("#session-note", "1 stalled")
            seen.says("#wait-seconds", r"^[1-9]")
            seen.says("#datasets td:nth-child(4)", "^3$")
            seen.says("#disks", "3 pieces")
            assert page.locator("#fills img").count() == 0
            assert page.title() != "owned"
            page.set_viewport_size({"width": 375, "height": 800})
            assert_fits(page, 375)
            page.set_viewport_size({"width": 1280, "height": 900})
            assert_fits(page, 1280)
            gate.open.set()
            seen.says("#fills-empty", "Nothing is being fetched")
            expect(page.locator("#fills-empty")).to_be_visible(timeout=SECONDS * 1000)
            seen.says("#sessions tr", "reads")
            seen.says("#datasets td:nth-child(4)", "^5$")
            seen.says("#hit-ratio", r"%")
            seen.says("#sample-rate", r"^[1-9].* samples/s")
            before = number(seen.text("#sessions td:nth-child(4)"))
            eventually(lambda: number(seen.text("#sessions td:nth-child(4)")) > before, SECONDS, "the position to move")
            chart_before = path_points(page)
            assert chart_before > 2
            assert page.evaluate("window.marked"), "it was loaded anew"
            page.reload()
            seen.says("#state", "^Serving$")
            assert path_points(page) >= chart_before, "the history is gone"
        seen.says("#session-count", "^0$")
        assert seen.hosts == {urlsplit(http_of(running)).netloc}
        assert seen.complaints == []


def number(text: str) -> int:
    return int(text.replace(",", ""))


def path_points(page: Page) -> int:
    return len(re.findall("[ML]", page.locator("#remote-chart path.line").get_attribute("d") or ""))


def assert_fits(page: Page, width: int) -> None:
    """Nothing is wider than the window, and nothing that is shown sticks out of it."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sticking_out = page.evaluate(
        """(width) => [...document.querySelectorAll("main *, header *, footer *")]
            .filter((element) => element.checkVisibility() && !element.closest("thead, .unseen, svg"))
            .filter((element) => element.getBoundingClientRect().right > width + 0.5)
            .map((element) => element.outerHTML.slice(0, 100))""",
        width,
    )
    assert sticking_out == []


def test_the_page_says_when_the_daemon_ends_and_when_it_is_gone_and_goes_on_when_it_is_back(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy, chromium: Browser
) -> None:
    put_tokens(bucket, "00.bin")
    gate = counting_proxy.fault = Gate(lambda key: key.endswith("00.bin"))
    env = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, "--http", "127.0.0.1:0", env=env) as first, opened(chromium, http_of(first)) as seen:
        seen.says("#state", "^Serving$")
        seen.says("#about", f"pid {first.process.pid}")
        seen.page.evaluate("window.marked = true")
        address = urlsplit(http_of(first)).netloc
        with trainer(bucket.uri("data"), first.socket):
            seen.says("#fill-count", "^1$")
            first.process.signal(signal.SIGTERM)
            seen.says("#state", "^Ending")
            gate.open.set()
            assert first.process.wait(SECONDS) == 0
            seen.says("#state", "^Not answering since [0-9:]+; asking again")
            assert seen.page.evaluate("document.body.classList.contains('is-old')")
            with daemon(home, "--http", address, env=env) as second:
                seen.says("#state", "^Serving$")
                seen.says("#about", f"pid {second.process.pid}")
                seen.says("#session-count", "^1$")
                assert seen.page.evaluate("window.marked"), "it was loaded anew"
                assert not seen.page.evaluate("document.body.classList.contains('is-old')")


class Refusal:
    """Holds the uploads of some step until it is let go, and refuses them then."""

    def __init__(self, step: int) -> None:
        self.let_go = threading.Event()
        self._held = f"-s{step:09d}-"

    def __call__(self, request: Request) -> Fault | None:
        if request.method != "PUT" or self._held not in request.key:
            return None
        self.let_go.wait(SECONDS)
        return Fault(status=403, body=b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")


def test_the_page_shows_how_far_checkpoints_are_and_why_one_is_not_uploaded(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy, chromium: Browser
) -> None:
    """CASES 39: an upload that fails is seen."""
    refusal = counting_proxy.fault = Refusal(10)
    env = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, "--http", "127.0.0.1:0", env=env) as running, opened(chromium, http_of(running)) as seen:
        seen.says("#uploads-empty", "No checkpoints are staged here")
        with node_of(running.socket, bucket.uri(f"runs/{HOSTILE}")) as ranks:
            ranks.watch(ranks.save(attempt(5)))
            seen.says("#uploads tr:has-text('step 5')", "durable.*100.0 %|durable")
            failing, waiting = ranks.save(attempt(10)), ranks.save(attempt(20))
            seen.says("#uploads tr:has-text('step 10')", "uploads")
            seen.says("#uploads tr:has-text('step 20')", "waits")
            seen.says("#staging", "staged, .* to upload$")
            assert seen.text("#uploads tr:has-text('step 20') td:nth-child(2) .under") == waiting.name
            refusal.let_go.set()
            row = "#uploads tr:has-text('step 10')"
            seen.says(row, "fails, is retried")
            seen.says(f"{row} .reason", "refuse|denie")
            seen.says("#uploads tr:first-child", failing.name)
            seen.says("#uploads tr:has-text('step 20')", "durable")
            seen.says(f"{row} .name >> nth=1", f"^{re.escape(HOSTILE)}$")
        assert seen.page.locator("#uploads img").count() == 0
        for width in (375, 1280):
            seen.page.set_viewport_size({"width": width, "height": 800})
            assert_fits(seen.page, width)
        values = scraped(http_of(running))
        assert values["forebay_pending_uploads"] == values["forebay_failing_uploads"] == 1
        assert values["forebay_uploads_total"] == 2
        assert values["forebay_upload_failures_total"] >= 1
        assert values["forebay_pending_upload_bytes"] > 0
        assert values["forebay_staging_used_bytes"] > values["forebay_pending_upload_bytes"]
        assert values["forebay_uploaded_bytes_total"] > 0
        assert values["forebay_upload_seconds_count"] == 2
        assert seen.complaints == []


def scraped(url: str) -> dict[str, float]:
    """The metrics by name; of one with labels the first value."""
    with urllib.request.urlopen(f"{url}metrics", timeout=SECONDS) as answer:
        samples = [s for family in text_string_to_metric_families(answer.read().decode()) for s in family.samples]
    return {sample.name: sample.value for sample in reversed(samples)}


CONTRASTS = """() => {
  const levels = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((level) => level / 255)
    .map((level) => (level <= 0.04045 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4));
  const weights = [0.2126, 0.7152, 0.0722];
  const luminance = (color) => levels(color).reduce((sum, level, index) => sum + level * weights[index], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("h1, h2, p, dt, dd, li, th, td, a, span, code")]
    .filter((element) => element.checkVisibility() && element.textContent.trim())
    .map((element) => {
      const [a, b] = [luminance(getComputedStyle(element).color), luminance(ground(element))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_either_colour_scheme(home: Path, chromium: Browser, scheme: str) -> None:
    with daemon(home, "--http", "127.0.0.1:0") as running, opened(chromium, http_of(running), scheme=scheme) as seen:
        seen.says("#state", "^Serving$")
        found = seen.page.evaluate(CONTRASTS)
        assert len(found) > 20
        assert [text for contrast, text in found if contrast < 4.5] == []
        is_dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 22, 27)"
        assert is_dark == (scheme == "dark")
