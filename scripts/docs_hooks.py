"""Called by mkdocs: shows the docstrings' Sphinx roles as code, as mkdocstrings leaves them as they are."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):<code>(~?)([\w.]+)(\(?\)?)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with each role in place of its name; ``~`` leaves the last part only."""
    return _ROLE.sub(_named, html)


def _named(found: re.Match[str]) -> str:
    name = found[2].rpartition(".")[2] if found[1] else found[2]
    return f"<code>{name}{found[3]}</code>"
