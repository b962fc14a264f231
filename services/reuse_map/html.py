"""The map as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape

from kvboost.types import Tier

from .ansi import printable
from .page import ReuseMap
from .palette import REPAIRED, REPAIRED_TEXT, REPAIRED_TINT, STYLES, hex_of

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<h1>{title}</h1>
{facts}
<table>
{legend}
</table>
<div class="strip" role="img" aria-label="the whole prompt, coloured by tier">{strip}</div>
<p class="hint">Point at a token, or tap it, to see its position, tier and similarity.</p>
<pre id="prompt">{tokens}</pre>
<div id="detail" aria-live="polite"></div>
<script>
{script}
</script>
</body>
</html>
"""

_STYLE = """body { max-width: 62rem; margin: 0 auto; padding: 1rem 1rem 4rem; font: 16px/1.5 system-ui, sans-serif;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere; }
p { margin: .2rem 0; color: #5f5f5f; }
table { border-collapse: collapse; margin: 1rem 0; }
td { padding: .15rem .6rem .15rem 0; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
td.m { color: #5f5f5f; }
i { display: inline-block; width: 1.6rem; height: 1.1rem; border-radius: 4px; vertical-align: middle; }
.strip { display: flex; height: 2rem; margin: 1rem 0; border-radius: 4px; overflow: hidden; }
.strip b { height: 100%; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.65 ui-monospace, Menlo, Consolas, monospace; }
pre span { color: #1a1a1a; cursor: pointer; padding: 2px 0; }
pre span:hover, pre span.on { outline: 2px solid #1a1a1a; }
#detail { position: fixed; left: 0; right: 0; bottom: 0; padding: .6rem 1rem; background: #1a1a1a; color: #fff; }
#detail:empty { display: none; }
@media print { #detail, .hint { display: none; } pre span, i, .strip b { print-color-adjust: exact; } }"""

_SCRIPT = """const prompt = document.getElementById("prompt"), detail = document.getElementById("detail");
let chosen = null;
function show(event) {
  const token = event.target.closest("span");
  if (!token || token === chosen) return;
  if (chosen) chosen.classList.remove("on");
  (chosen = token).classList.add("on");
  detail.textContent = token.title;
}
prompt.addEventListener("click", show);
prompt.addEventListener("mouseover", show);"""


def to_html(page: ReuseMap) -> str:
    """Return the page: figures, legend, strip, and every token of the prompt with a tooltip."""
    return _PAGE.format(
        title=escape(page.title),
        style="\n".join([_STYLE, *_tier_styles()]),
        facts="\n".join(f"<p>{escape(fact)}</p>" for fact in page.facts),
        legend="\n".join(_legend(page)),
        strip="".join(_strip(page)),
        tokens="".join(_token(page, position) for position in range(len(page.tokens))),
        script=_SCRIPT,
    )


def _tier_styles() -> list[str]:
    rules = []
    for tier, style in STYLES.items():
        rules.append(f".{tier} {{ background: {hex_of(style.tint)}; }}")
        rules.append(f"i.{tier}, b.{tier} {{ background: {hex_of(style.colour)}; }}")
    rules.append(
        f".repaired {{ background: {hex_of(REPAIRED_TINT)}; box-shadow: inset 0 -3px {hex_of(REPAIRED)}; }} "
        f"i.repaired {{ background: {hex_of(REPAIRED)}; box-shadow: none; }}"
    )
    return rules


def _legend(page: ReuseMap) -> list[str]:
    rows = [(str(tier), str(tier), count, STYLES[tier].meaning) for tier, count in page.legend]
    if page.repaired_tokens:
        name, _, meaning = REPAIRED_TEXT.partition(": ")
        rows.append(("repaired", name, page.repaired_tokens, meaning))
    return [
        f'<tr><td><i class="{css}"></i></td><td>{name}</td><td class="n">{count:,}</td>'
        f'<td class="n">{page.share(count)}</td><td class="m">{escape(meaning)}</td></tr>'
        for css, name, count, meaning in rows
    ]


def _strip(page: ReuseMap) -> list[str]:
    bars: list[tuple[Tier, int]] = []
    for tier in page.surroundings():
        if bars and bars[-1][0] is tier:
            bars[-1] = (tier, bars[-1][1] + 1)
        else:
            bars.append((tier, 1))
    return [f'<b class="{tier}" style="flex:{count}"></b>' for tier, count in bars]


def _token(page: ReuseMap, position: int) -> str:
    token = page.tokens[position]
    words = f"token {position}, repaired" if token.repaired else f"token {position}, {token.tier}"
    if token.tier is Tier.SIMILAR:
        words += f", similarity {token.similarity:.3f}"
    css = "repaired" if token.repaired else str(token.tier)
    # Line breaks stay as they are; other control characters are no valid HTML.
    text = "\n".join(printable(part) for part in token.text.expandtabs(4).split("\n"))
    return f'<span class="{css}" title="{words}">{escape(text)}</span>'
