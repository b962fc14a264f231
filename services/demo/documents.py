"""The demo's documents: chapters of the Python language reference, and a notice with a number that changes.

The chapters are those of the standard library's ``pydoc_data.topics``, so they are on every machine; their text
differs a little between versions of Python.
"""

from __future__ import annotations

from pydoc_data.topics import topics

OLD_FEE = "145"
NEW_FEE = "280"

_TOPICS = ("truth", "booleans", "exceptions", "objects", "for", "context-managers", "naming")
_SHORT_TOPICS = (
    "assert", "atom-literals", "attribute-references", "binary", "break", "context-managers", "continue", "del",
    "dict", "global", "lists", "objects", "power", "return",
)  # fmt: skip
_MAX_CHARACTERS = 1_800
_SHORT_CHARACTERS = 700

_NOTICE = """Python reading course: practical notes
**************************************

The course reads the language reference from front to back, one chapter a
week, and leaves time for questions.  It is meant for people who already
write small programs and want to know why the language behaves as it does.
Nobody has to prepare anything for the first evening.

The course meets on Tuesdays in the reading room of the public library.
Doors open a quarter of an hour before we begin.  There is a lift to the
second floor, and the room has a screen, a whiteboard and good light.

The fee for the whole course is {fee} euros.  It covers the printed
handouts, coffee and tea.  Members of the library pay the same fee as
everybody else.  The fee is due on the first evening, in cash or by card.

Every chapter is read aloud in turns.  Then the group collects examples
that agree with the text and examples that seem to contradict it, and runs
them.  What surprises the group is written down and looked up in the
source.  People who miss an evening find the notes on the shelf next to
the printer, together with the handouts of the week.

At the end everybody explains one chapter to the group.  A short talk is
enough: what the chapter promises, one example, and one open question."""


def documents(fee: str = OLD_FEE) -> list[str]:
    """Return eight documents of about 250 to 520 tokens; the notice with the fee stands in the middle."""
    chapters = [opening(topics[name], _MAX_CHARACTERS) for name in _TOPICS]
    return [*chapters[:3], _NOTICE.format(fee=fee), *chapters[3:]]


def short_documents() -> list[str]:
    """Return fourteen documents of about 100 to 150 tokens."""
    return [opening(topics[name], _SHORT_CHARACTERS) for name in _SHORT_TOPICS]


def opening(text: str, max_characters: int) -> str:
    """Return the first paragraphs of ``text`` that fit, at least one; cut at a line where that one does not.

    A heading, or a line that announces what follows, is not left at the end.
    """
    paragraphs = text.strip().split("\n\n")
    kept = [paragraphs[0]]
    for paragraph in paragraphs[1:]:
        if len("\n\n".join([*kept, paragraph])) > max_characters:
            break
        kept.append(paragraph)
    while len(kept) > 1 and (kept[-1].endswith(":") or not set(kept[-1].splitlines()[-1]) - set("=*-~")):
        kept.pop()
    joined = "\n\n".join(kept)
    return joined if len(joined) <= max_characters else joined[: joined.rindex("\n", 0, max_characters)]
