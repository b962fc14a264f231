"""The reuse map: every token is there, in its colour, and a prompt cannot break out of it."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from kvboost.errors import InputError
from kvboost.reuse import TierSpan
from kvboost.services.reuse_map import (
    MapToken,
    ReuseMap,
    map_tokens,
    supports_colour,
    to_ansi,
    to_html,
    to_plain,
    write_html,
    write_png,
)
from kvboost.services.reuse_map.flow import flow
from kvboost.services.reuse_map.page import HEAD_TOKENS, MIN_HIDDEN_TOKENS, TAIL_TOKENS
from kvboost.services.reuse_map.palette import REPAIRED, STYLES, hex_of
from kvboost.services.reuse_map.png import to_png
from kvboost.types import Span, Tier

tokens = st.lists(
    st.builds(
        MapToken,
        st.one_of(st.sampled_from([" the", "\n", "\n\n", "", "中", "。", "  \n"]), st.text(max_size=6)),
        st.sampled_from(list(Tier)),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=40,
).map(tuple)


class _Reader(HTMLParser):
    """Collects class, tooltip and text of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.tokens: list[tuple[str, str, str]] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "span":
            named = dict(attrs)
            self.tokens.append((named["class"] or "", named["title"] or "", ""))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "span"

    def handle_data(self, data: str) -> None:
        if self._open:
            css, title, text = self.tokens[-1]
            self.tokens[-1] = (css, title, text + data)


def read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    return reader


def page_of(*texts: str, tier: Tier = Tier.EXACT) -> ReuseMap:
    return ReuseMap("a map", tuple(MapToken(text, tier) for text in texts))


def colours_of(image: Image.Image) -> set[tuple[int, ...]]:
    """Return the colours of areas; smoothed letters have many more, a few pixels each."""
    found = image.convert("RGB").getcolors(1 << 20)
    assert found is not None
    return {colour for count, colour in found if count >= 60 and isinstance(colour, tuple)}


def test_spans_and_texts_are_joined() -> None:
    spans = [
        TierSpan(Span(0, 2), Tier.PREFIX),
        TierSpan(Span(2, 3), Tier.COMPUTED, repaired=True),
        TierSpan(Span(3, 4), Tier.SIMILAR, 0.9),
    ]
    assert map_tokens(["a", "b", "c", "d"], spans) == (
        MapToken("a", Tier.PREFIX),
        MapToken("b", Tier.PREFIX),
        MapToken("c", Tier.COMPUTED, repaired=True),
        MapToken("d", Tier.SIMILAR, 0.9),
    )


@pytest.mark.parametrize("spans", [[(0, 2)], [(0, 4)], [(1, 3)], [(0, 1), (2, 3)], [(0, 2), (1, 3)], []])
def test_spans_that_do_not_cover_the_prompt_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(InputError, match=r"3 tokens|prompt has 3"):
        map_tokens(["a", "b", "c"], [TierSpan(Span(a, b), Tier.EXACT) for a, b in spans])


def test_counts_tell_repaired_tokens_apart() -> None:
    page = ReuseMap(
        "", (MapToken("a", Tier.EXACT), MapToken("b", Tier.COMPUTED, repaired=True), MapToken("c", Tier.COMPUTED))
    )
    assert (page.counts[Tier.COMPUTED], page.repaired_tokens) == (2, 1)
    assert dict(page.legend) == {Tier.EXACT: 1, Tier.COMPUTED: 1}


@given(tokens)
@settings(max_examples=60)
def test_html_holds_every_token_with_tier_and_text(tokens: tuple[MapToken, ...]) -> None:
    found = read(to_html(ReuseMap("a map", tokens))).tokens
    assert [css for css, _, _ in found] == [token.tier for token in tokens]
    for position, ((_, title, text), token) in enumerate(zip(found, tokens, strict=True)):
        assert title.startswith(f"token {position}, {token.tier}")
        if token.text.isprintable():
            assert text == token.text


def test_html_escapes_the_prompt_and_the_title() -> None:
    attack = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    page = ReuseMap(attack, (MapToken(attack, Tier.EXACT), MapToken("&amp;", Tier.EXACT)), (attack,))
    html = to_html(page)
    reader = read(html)
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags
    assert [text for _, _, text in reader.tokens] == [attack, "&amp;"]
    assert attack not in html
    assert attack in unescape(html)


def test_html_needs_nothing_else_and_fits_a_phone() -> None:
    html = to_html(page_of("a"))
    assert not re.search(r"https?://|src=|@import|url\(", html)
    assert 'name="viewport"' in html
    for style in STYLES.values():
        assert hex_of(style.tint) in html


@given(tokens)
@settings(max_examples=60)
def test_flow_places_every_token_inside_the_page(tokens: tuple[MapToken, ...]) -> None:
    placed = flow(ReuseMap("", tokens), lambda text: 10.0 * len(text), 100.0)
    assert sorted({cell.token for cell in placed.cells}) == list(range(len(tokens)))
    assert [cell.token for cell in placed.cells] == sorted(cell.token for cell in placed.cells)
    assert all(cell.x >= 0 and cell.x + cell.width <= 100.0 for cell in placed.cells)
    assert all(0 <= cell.line < placed.lines for cell in placed.cells)
    for a, b in zip(placed.cells, placed.cells[1:], strict=False):
        assert (a.line, a.x + a.width) <= (b.line, b.x) or a.line < b.line


def test_words_stay_whole_where_a_token_ends_inside_them() -> None:
    placed = flow(page_of("one", " two", " four", " s", "ix"), lambda text: 10.0 * len(text), 145.0)
    assert [(cell.text, cell.line) for cell in placed.cells][2:] == [(" four", 0), (" s", 1), ("ix", 1)]


def test_the_middle_of_a_long_stretch_is_only_counted() -> None:
    long = HEAD_TOKENS + TAIL_TOKENS + MIN_HIDDEN_TOKENS
    tokens = [MapToken(" a", Tier.EXACT)] * (long + 5) + [MapToken(" b", Tier.PREFIX)] * (long - 1)
    tokens[100] = MapToken(" a", Tier.COMPUTED, repaired=True)  # does not end the stretch
    passages = ReuseMap("", tuple(tokens)).passages()
    assert [(len(p), p.shown) for p in passages] == [
        (HEAD_TOKENS, True),
        (MIN_HIDDEN_TOKENS + 5, False),
        (TAIL_TOKENS, True),
        (long - 1, True),
    ]
    assert passages[-1].end == len(tokens)


@pytest.mark.parametrize("tier", list(Tier))
def test_png_shows_each_tier_in_its_colour(tier: Tier) -> None:
    colours = colours_of(to_png(page_of("words", " of", " it", tier=tier)))
    assert {STYLES[tier].colour, STYLES[tier].tint} <= colours
    others = {STYLES[other].tint for other in Tier if other is not tier}
    assert not others & colours


def test_png_marks_repaired_tokens() -> None:
    plain = page_of("a", " b", " c")
    repaired = ReuseMap("a map", (plain.tokens[0], MapToken(" b", Tier.COMPUTED, repaired=True), plain.tokens[2]))
    assert REPAIRED not in colours_of(to_png(plain))
    assert REPAIRED in colours_of(to_png(repaired))


@given(tokens)
@settings(max_examples=15, deadline=None)
def test_png_draws_any_text(tokens: tuple[MapToken, ...]) -> None:
    assert to_png(ReuseMap("图 \x1b[31m \U0001f600", tokens, ("ترجمة",))).width == 1280


def test_png_has_room_for_the_whole_prompt() -> None:
    short, long = to_png(page_of("word")), to_png(page_of(*[" word\n\n"] * 40))
    assert long.height >= short.height + 39 * 20


def test_files_are_written_into_new_folders(tmp_path: Path) -> None:
    page = page_of("a")
    picture = write_png(page, tmp_path / "new" / "map.png")
    with Image.open(picture) as image:
        assert image.format == "PNG"
    assert write_html(page, tmp_path / "other" / "map.html").read_text(encoding="utf-8") == to_html(page)


def test_a_file_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_png(page_of("a"), tmp_path / "file" / "map.png")


@given(tokens)
@settings(max_examples=60)
def test_a_prompt_cannot_steer_the_terminal(tokens: tuple[MapToken, ...]) -> None:
    page = ReuseMap("title \x1b]0;x\x07", tokens, ("fact \x9b1m",))
    ours = re.compile(r"\x1b\[[0-9;]*m")
    for text in (ours.sub("", to_ansi(page)), to_plain(page)):
        assert all(c.isprintable() or c == "\n" for c in text)


def test_ansi_holds_the_whole_text_in_colours() -> None:
    page = page_of("To", " be", ",\n", "\n", "or", " 不", " not", tier=Tier.PREFIX)
    text = to_ansi(page)
    assert f"48;5;{STYLES[Tier.PREFIX].terminal}m" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).endswith("To be,\n\nor 不 not")


def test_plain_text_is_one_line_for_each_stretch() -> None:
    page = ReuseMap("t", (MapToken("a", Tier.PREFIX), MapToken("b", Tier.PREFIX), MapToken("c", Tier.SIMILAR, 0.875)))
    lines = to_plain(page).splitlines()
    assert lines[-2].split() == ["0", "2", "prefix", "'ab'"]
    assert lines[-1].split() == ["2", "1", "similar", "0.875", "'c'"]
    assert "\x1b" not in to_plain(page)


def test_colours_only_for_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert supports_colour(Terminal())  # type: ignore[arg-type]
    with (tmp_path / "file").open("w") as file:
        assert not supports_colour(file)
    monkeypatch.setenv("TERM", "dumb")
    assert not supports_colour(Terminal())  # type: ignore[arg-type]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not supports_colour(Terminal())  # type: ignore[arg-type]


def test_tints_keep_text_readable() -> None:
    """WCAG AA wants a contrast of 4.5 for text this small."""

    def luminance(colour: str) -> float:
        linear = [
            (c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in ImageColor.getrgb(colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ink = luminance("#1a1a1a")
    for style in STYLES.values():
        assert (luminance(hex_of(style.tint)) + 0.05) / (ink + 0.05) >= 4.5
