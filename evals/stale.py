"""Share of answers that still give the old fact after a document was edited, per policy.

A document is served and cached; then one number, name, negation or date in it changes, and the fact is asked for.
K/V of equal tokens around the change have attended to the old value: reuse without care answers with it.

Answers are begun for the model ("The maximum upload size is"), so that a small one says more than that it does not
know; ``--free`` leaves the beginning to the model.

``stale_share``
    Answers that give the old value, alone or beside the new one (``both_share``). A small model says it now and
    then under full prefill too, so what counts is the difference to the rows of ``full``.
``new_share``
    Answers that give the new value, alone or beside the old one.
``forced_stale_share``, ``log_odds``
    A choice between the two: how often the old value is the likelier where they part, and the mean log-odds of the
    new one against it in nats.
``fell_stale``
    How many answers give the old value where those of full prefill do not.
``kind``
    What has changed. ``after_edit`` are items with one more sentence after the fact, the same in both versions and
    reused as it is, which says what follows from the fact or speaks of its subject again.
``nominated_share``, ``followed_share``
    Items whose changed chunk was nominated for the similar tier, and items that reuse exact-tier tokens after the
    change: where these are low, the eval has tested nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain

from transformers import PreTrainedTokenizerBase

from evals import _arguments
from evals._arguments import size
from evals._bench import Bench, Deadline
from evals._main import Eval, Result, run
from evals._stale_items import Item, make_items
from evals._stale_plot import draw
from evals._stale_policies import cases
from evals._stale_probe import Prober, Reply
from evals._stale_rows import FIGURES, answers, rows, summary
from evals._stale_templates import LANGUAGES
from evals._stale_texts import Texts, read_texts
from evals._table import table
from kvboost.errors import InputError
from services.progress import bar


def measure(bench: Bench, args: argparse.Namespace) -> Result:
    """Ask about every item under every policy."""
    if bench.embedder is None:
        raise InputError("an embedder has to nominate the edited chunks; leave out --embedder none")
    compared = cases(bench.policy, args.quick)
    deadline = Deadline(args.quick)
    texts = read_texts(args)
    items = _items(bench.tokenizer, texts, args)
    asked: list[list[Reply]] = []
    with bench.session() as session:
        answer_tokens = size(args, "answer_tokens", 16, 24) if args.free else size(args, "answer_tokens", 10, 16)
        prober = Prober(session, bench.tokenizer, compared, answer_tokens, begin=not args.free)
        for item in bar(items, "asking about edited documents", total=len(items), unit="document"):
            if deadline.passed() and asked:
                break
            asked.append(prober.ask(item))
    return {
        "rows": rows(asked),
        "summary": summary(asked),
        "policies": {case.name: {**asdict(case.policy), "fact_rule": case.fact_rule} for case in compared},
        "begun": not args.free,
        "languages": list(dict.fromkeys(item.language for item in items)),
        "answers": answers(asked),
        "source": texts.source,
        "stopped_early": deadline.stopped,
    }


def _table(result: Result) -> str:
    """Return the figures by kind of change, then those of each policy over all items."""
    overall = [{"policy": policy, **figures} for policy, figures in result["summary"].items()]
    shares = ("nominated_share", "followed_share", "reuse_share")
    parts = [
        table(result["rows"], ("policy", "language", "kind", "n", *FIGURES)),
        table(overall, ("policy", "n", *FIGURES, *shares)),
    ]
    if result["stopped_early"]:
        parts.append("time was up: fewer documents than asked for")
    return "\n\n".join(parts)


def _items(tokenizer: PreTrainedTokenizerBase, texts: Texts, args: argparse.Namespace) -> list[Item]:
    """Return the items of all languages that there is text in, in turn: a run cut short has some of each."""
    count, tokens = size(args, "items", 25, 100), size(args, "document_tokens", 128, 240)

    def measured(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    made: list[Iterator[Item]] = []
    for language in LANGUAGES:
        found = [each for each in texts.paragraphs[language] if measured(each) <= 2 * tokens]
        if found:
            rng = random.Random(f"{args.seed} {language}")
            made.append(make_items(language, count, found, measured, tokens, rng))
    if not made:
        raise InputError(
            f"no paragraph of prose has at most {2 * tokens} tokens; raise --document-tokens or give other texts"
        )
    return list(chain.from_iterable(zip(*made, strict=True)))


def _parser() -> argparse.ArgumentParser:
    made = _arguments.parser("stale", (__doc__ or "").partition("\n")[0])
    made.add_argument("--free", action="store_true", help="do not begin the answers for the model")
    return made


def main(argv: Sequence[str] | None = None, bench: Bench | None = None) -> int:
    """Run from the command line."""
    return run(Eval("stale", _parser(), measure, _table, draw), argv, bench)


if __name__ == "__main__":
    sys.exit(main())
