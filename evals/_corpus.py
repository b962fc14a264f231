"""Natural text of any length, cut to a number of tokens."""

from __future__ import annotations

import random
from pydoc_data.topics import topics

from transformers import PreTrainedTokenizerBase

from evals._documents import UNDERLINE
from kvboost.errors import InputError

_GAP = "\n\n"


class Corpus:
    """The texts in the standard library's ``pydoc_data.topics`` one behind the other; no part is given out twice.

    Unlike :func:`evals._documents.own_documents` it cuts at tokens, so that prompts have the length that is asked for.

    Parameters
    ----------
    rounds
        How often the texts are gone through: from the second time on the words of each line are in a random order,
        which is no text, but shares no run of words with what came before. For evals where the model does not matter.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, rounds: int = 1) -> None:
        names = sorted(topics)
        random.Random(f"{seed} corpus").shuffle(names)
        self._text = _GAP.join(UNDERLINE.sub("", topics[name]).strip() for name in names)
        rng, text = random.Random(f"{seed} words"), self._text
        for _ in range(rounds - 1):
            self._text += _GAP + "\n".join(_shuffled(line, rng) for line in text.split("\n"))
        made = tokenizer(self._text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        self._starts = [start for start, _ in made["offset_mapping"]]
        self._at = 0

    def take(self, tokens: int) -> str:
        """Return the next text of about ``tokens`` tokens: cut out of its surroundings it may be one or two more.

        Raises
        ------
        InputError
            If the texts are used up.
        """
        end = self._at + tokens
        if end >= len(self._starts):
            raise InputError(f"the texts hold {len(self._starts)} tokens, fewer than asked for; give fewer --tokens")
        text = self._text[self._starts[self._at] : self._starts[end]]
        self._at = end
        return text.strip()


def _shuffled(line: str, rng: random.Random) -> str:
    words = line.split()
    return " ".join(rng.sample(words, len(words)))
