"""The site builds without a complaint, loads nothing from elsewhere, and shows on a phone."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import chromium
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


def test_every_page_is_in_the_menu() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = {page for entry in menu for page in entry.values()}
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 9
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//", text), page
        assert not re.search(r"<link[^>]*href=\"(?:https?:)?//", text), page


def test_the_reference_is_made_from_the_docstrings(site: Path) -> None:
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    for anchor in ("kvboost.api.boost", "kvboost.policy.ReusePolicy", "kvboost.client.RuntimeClient.answer"):
        assert f'id="{anchor}"' in text
    assert ":class:" not in text
    assert "Cosine similarity in" in text


def test_marks_of_blocks_are_not_shown(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "```" not in text, page
        assert "{ .bash" not in text, page


@pytest.mark.parametrize("page", ["first-steps/", "how-it-works/", "api/"])
def test_a_page_shows_on_a_phone(url: str, page: str, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    chromium.screenshot(f"{url}/{page}", picture, 500, 900, tmp_path / "profile")
    assert picture.stat().st_size > 20_000
