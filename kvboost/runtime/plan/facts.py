"""Does a wording change touch a fact? If so, the whole sentence is recomputed, not just the differing tokens.

K/V after a changed number, negation or name still carry the old one. The test errs towards yes: a needless yes
costs a sentence of recomputation, a wrong no gives a stale answer.
"""

from __future__ import annotations

import re
import unicodedata

_NUMBER_WORDS = frozenset(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fourty fifty sixty seventy eighty ninety hundred hundreds thousand thousands
    million millions billion billions trillion trillions dozen dozens score first second third fourth fifth sixth
    seventh eighth ninth tenth eleventh twelfth twentieth thirtieth hundredth thousandth millionth half halves
    quarter quarters double triple quadruple twice thrice once single pair both all most many few several some any
    every each more less fewer only percent
    """.split()  # noqa: SIM905
)
_DATE_WORDS = frozenset(
    """
    january february march april may june july august september october november december jan feb mar apr jun jul aug
    sep sept oct nov dec monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri
    sat sun today tomorrow yesterday tonight noon midnight am pm bc ad bce ce spring summer autumn fall winter
    """.split()  # noqa: SIM905
)
_UNITS = frozenset(
    """
    mm cm m km mg g kg lb lbs oz ft mi t ml l s ms us ns min h hr hrs b kb mb gb tb kib mib gib tib hz khz mhz ghz
    v mv kv w kw mw gw inch inches foot feet yard yards mile miles meter meters metre metres kilometer kilometers
    kilometre kilometres gram grams kilogram kilograms pound pounds ounce ounces ton tons tonne tonnes liter liters
    litre litres gallon gallons second seconds minute minutes hour hours day days week weeks month months year years
    decade decades century centuries dollar dollars euro euros yen yuan rupee rupees cent cents celsius fahrenheit
    kelvin
    """.split()  # noqa: SIM905
)
_NEGATIONS = frozenset(
    """
    no not none never neither nor nothing nobody nowhere without cannot cant wont dont doesnt didnt isnt arent wasnt
    werent hasnt havent hadnt shouldnt wouldnt couldnt mustnt aint hardly scarcely barely rarely seldom except unless
    fail fails failed lack lacks lacked deny denies denied refuse refuses refused false
    nicht kein keine keinen keinem keiner keines nie niemals ohne pas jamais sans ne sin nunca ni não nunca sem non
    senza mai niet geen не нет ни без никогда
    """.split()  # noqa: SIM905
)
_NEGATING_PREFIX = re.compile(r"(?:un|non|dis|mis|anti|counter)-?\w{3,}")
_STEM_PREFIXES = ("in", "im", "il", "ir", "a", "de", "ab")
_STEM_SUFFIXES = ("less",)
# Capitalised where a sentence begins, and no names.
_FUNCTION_WORDS = frozenset(
    """
    a an the this that these those it its he she we you they his her our your their my i me him them us who whom whose
    which what when where why how and or but so yet if then else than as at by for from in into of on onto to with
    about after before between during through over under up down out off above below since until while although
    though because however therefore thus hence moreover furthermore also again here there is are was were be been
    being am do does did have has had can could shall should will would might must please let
    """.split()  # noqa: SIM905
)
# Chinese particles, pronouns of no content and conjunctions: the only characters without case that may differ.
_CHINESE_FUNCTION = frozenset("的地得了着过吗呢吧啊呀嘛么啦哦和与及且而也就都还又是在于把被将对向从之其这那此该")
_WORD = re.compile(r"[^\W_](?:[\w’'./:@,+-]*\w)?", re.UNICODE)
_DIGITS = re.compile(r"\d+(?:[.,:/’'\s-]?\d+)*")
_SIGN = re.compile(r"(?<!\w)[-−+±](?=\s*[\d.])|[%‰°$€£¥₹₩#<>≤≥=≠¬√½¼¾⅓⅔]|(?<=\d)\s*[-–]\s*(?=\d)")
# Letters without case, and the vowel signs that go with them.
_CASELESS = ("Lo", "Lm", "Mc", "Mn")
_IDENTIFIER = re.compile(r"\w[_@/\\]\w|\w\.\w|\d[^\W\d_]|[^\W\d_]\d|[a-z][A-Z]")


def changes_fact(before: str, after: str) -> bool:
    """Whether replacing ``before`` by ``after`` changes a number, a negation or a name.

    Numbers are digits of any script, number words, quantities, units, dates, signs and currencies. A name is a
    capitalised word that is no common function word, an identifier, or any word of a script without capitals,
    where a name cannot be told from another word.

    Parameters
    ----------
    before, after
        The differing words, whole words of both texts; either may be empty.
    """
    old, new = (unicodedata.normalize("NFKC", text) for text in (before, after))
    if old == new:
        return False
    if _numbers(old) != _numbers(new):
        return True
    old_words, new_words = _words(old), _words(new)
    return (
        _listed(old_words) != _listed(new_words)
        or _negated_by_affix(old_words, new_words)
        or _names(old_words) != _names(new_words)
        or _caseless(old) != _caseless(new)
    )


def _numbers(text: str) -> list[str]:
    """Return digits, with their separators, and signs, in order; digits of any script as ASCII."""
    found = [(match.start(), _ascii_digits(match.group())) for match in _DIGITS.finditer(text)]
    found += [(match.start(), match.group().strip()) for match in _SIGN.finditer(text)]
    found += [(i, char) for i, char in enumerate(text) if not char.isdigit() and char.isnumeric()]
    return [number for _, number in sorted(found)]


def _ascii_digits(text: str) -> str:
    return "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in text)


def _words(text: str) -> list[str]:
    return [word.replace("’", "'") for word in _WORD.findall(text)]


def _listed(words: list[str]) -> list[str]:
    """Return the words that count, measure, date or negate, in order."""
    found = []
    for word in words:
        for part in re.split(r"[-/,.:]", word.casefold()):
            if part.endswith("n't") or part in _NEGATIONS:
                found.append("not" if part.endswith("n't") else part)
            elif part in _NUMBER_WORDS or part in _DATE_WORDS or part in _UNITS:
                found.append(part)
    return found


def _negated_by_affix(old_words: list[str], new_words: list[str]) -> bool:
    """Whether a word that differs has a negating prefix, or is the other side's word with an affix of negation."""
    old, new = ({word.casefold() for word in words} for words in (old_words, new_words))
    differing = old ^ new
    for word in differing:
        if _NEGATING_PREFIX.fullmatch(word):
            return True
        stems = [word[len(prefix) :].lstrip("-") for prefix in _STEM_PREFIXES if word.startswith(prefix)]
        if any(stem in differing for stem in stems) or word.endswith(_STEM_SUFFIXES):
            return True
    return False


def _names(words: list[str]) -> list[str]:
    return [word for word in words if _may_be_name(word)]


def _may_be_name(word: str) -> bool:
    if _IDENTIFIER.search(word):
        return True
    if not any(char.isupper() or char.istitle() for char in word):
        return False
    return word.casefold().removesuffix("'s") not in _FUNCTION_WORDS or (len(word) > 1 and word.isupper())


def _caseless(text: str) -> list[str]:
    """Return the letters of scripts without capitals (CJK, Arabic, Hindi, Thai ...) that carry content, in order."""
    return [char for char in text if unicodedata.category(char) in _CASELESS and char not in _CHINESE_FUNCTION]
