"""The gateway's page in a real browser, and its history."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from kvboost.client import CacheClient
from kvboost.client.runtime_types import RuntimeInfo
from kvboost.services.gateway.watch import Sample, _point
from kvboost.services.reuse_map.palette import REPAIRED, STYLES
from kvboost.types import Tier
from tests import chromium
from tests.contracts.chunks import namespace, offer, words
from tests.scripted_runtime import scripted_runtime
from tests.servers import cache_server, gateway_server

PATIENCE_S = 60.0
PHONE = (390, 1600)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway that served three requests over a cache with two chunks, and has recorded them."""
    chromium.installed()
    with scripted_runtime() as runtime, cache_server() as cache:
        writer = CacheClient(cache.address)
        key = namespace("ann").key
        writer.open(namespace("ann"))
        writer.put(offer(key, [words("a"), words("b")]))
        writer.close()
        with gateway_server([runtime.address], cache.address, "--refresh", "0.2") as gateway:
            client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
            for _ in range(3):
                client.completions.create(model="scripted", prompt="ok 2")
            end_s = time.monotonic() + PATIENCE_S
            history = f"{gateway.address}/kvboost/overview"
            while sum(p["requests"] for p in client._client.get(history).json()["history"]) < 3:
                assert time.monotonic() < end_s, "the requests are not in the history"
                time.sleep(0.1)
            yield gateway.address
            client.close()


def test_the_page_shows_what_was_served(url: str, tmp_path: Path) -> None:
    html = chromium.dom(f"{url}/", tmp_path)
    assert 'data-shown="yes"' in html
    text = re.sub(r"\s+", " ", re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL))
    for words_ in (
        "scripted · 1 of 1 runtimes",
        "70.0 % prompt tokens reused",
        "3 requests",
        "0 in flight",
        "1.0 KiB K/V held",
        "1.0 KiB of 2.0 GiB",
        "scripted, tenant ann · 1.0 KiB in 2 chunks, 0 evicted",
        "threshold 0.910 · repairs 15.0 % · mean KL 0.012 · 2 of 40 audits over the bound on KL",
        "at this setting 0.0 % to 20.0 % of requests violate",
        "70.0 % of 10 tokens reused",
        "first token 300 ms · 2 answer tokens",
        "saved about 1.50 s · 1 tokens repaired · too short; not worth it",
        "fell back: CacheUnavailableError: gone",
    ):
        assert words_ in text, words_
    assert html.count('class="strip"') == 3
    assert "threshold (left) mean KL of audits, nats (right)" in text
    assert re.search(r"<circle[^>]*><title>[^<]*, threshold 0.910, mean KL 0.012</title>", html)
    assert "reuse map" not in text  # without --show-prompts there is none to link to


_FRAME = """<link rel="icon" href="data:,">
<iframe id="page" src="/" style="width:{width}px;height:1600px;border:0"></iframe>
<p id="told"></p><script>
setTimeout(() => {{
  const root = page.contentDocument.documentElement, shown = page.contentDocument.body.dataset.shown;
  told.textContent = `too wide by ${{root.scrollWidth - root.clientWidth}}, shown ${{shown}}`;
}}, 2500);
</script>"""


@contextmanager
def framed(url: str, width: int) -> Iterator[str]:
    """Give the URL of a page that holds the gateway's page in a frame of that width, and says how wide it became."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/frame.html":
                body, kind = _FRAME.format(width=width).encode(), "text/html"
            else:  # of the same origin, or the frame could not be looked into
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url + self.path) as answer:
                    body, kind = answer.read(), answer.headers["Content-Type"]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/frame.html"
        server.shutdown()


def test_the_page_fits_a_phone(url: str, tmp_path: Path) -> None:
    with framed(url, PHONE[0]) as frame:
        assert "too wide by 0, shown yes" in chromium.dom(frame, tmp_path)


@pytest.mark.parametrize("size", [PHONE, (1100, 1300)])
def test_strips_and_bars_have_the_colours_of_the_reuse_maps(url: str, tmp_path: Path, size: tuple[int, int]) -> None:
    chromium.screenshot(f"{url}/", tmp_path / "page.png", *size, tmp_path / "profile")
    with Image.open(tmp_path / "page.png") as picture:
        pixels = Counter(map(tuple, np.asarray(picture.convert("RGB")).reshape(-1, 3).tolist()))
    for colour in (STYLES[Tier.PREFIX].colour, STYLES[Tier.EXACT].colour, STYLES[Tier.COMPUTED].colour, REPAIRED):
        assert pixels[colour] > 200, colour


def info(**counters: int) -> RuntimeInfo:
    return RuntimeInfo("0", "m", namespace(), 0, "", (), (), counters)


def test_history_is_what_counters_gained() -> None:
    before = Sample(0.0, {"a": info(requests=3, tokens_exact=10), "b": None}, None)
    after = Sample(5.0, {"a": info(requests=5, tokens_exact=30), "b": info(requests=9)}, None)
    point = _point(before, after)
    assert (point.at_s, point.requests, point.tokens_by_tier["exact"]) == (5.0, 2, 20)


def test_a_runtime_that_was_restarted_counts_from_nothing() -> None:
    before = Sample(0.0, {"a": info(requests=30)}, None)
    after = replace(before, runtimes={"a": info(requests=2)})
    assert _point(before, after).requests == 2
