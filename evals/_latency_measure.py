"""One group of latency cells: everything interleaved, in an order that is drawn anew in each round."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median, quantiles
from typing import Any

from transformers import PreTrainedTokenizerBase

from evals._bench import Deadline
from evals._clocks import Memcpy, Plain, Resident, as_batch
from evals._latency_cells import Case, Group
from evals._served import Served, Timed

_SHORT_TOKENS = 1100
_MIDDLE_TOKENS = 4200

Key = tuple[Any, ...]
Action = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often each thing is measured; full prefills of long prompts, of tens of seconds each, less often."""

    repetitions: int
    tokens: int

    @property
    def full_prefills(self) -> int:
        """Rounds that have full prefills in them."""
        most = 3 if self.tokens <= _MIDDLE_TOKENS else 2
        return self.repetitions if self.tokens <= _SHORT_TOKENS else min(self.repetitions, most)


class GroupRun:
    """Measures one group on one model.

    Parameters
    ----------
    plain
        Over the same weights as ``served``.
    """

    def __init__(self, group: Group, served: Served, plain: Plain, transports: Sequence[str], rng: random.Random):
        self._group = group
        self._served = served
        self._plain = plain
        self._transports = transports
        self._rng = rng
        self._token_bytes = served.engines["in_process"].support.layout.token_bytes
        self._memcpy = Memcpy(self._token_bytes * max(len(case.prompt) for case in group.cases))
        self.timed: dict[Key, list[Timed]] = defaultdict(list)
        self.seconds: dict[Key, list[float]] = defaultdict(list)
        self._ids = as_batch(group.base, plain.model.device)
        self._computed: dict[tuple[int, str], int] = {}
        self._copied: dict[int, int] = {}

    def prepare(self) -> None:
        """Fill the caches, and run each case once off the clock: that also says how much of it is computed."""
        self._served.forget()
        for donor in self._group.donors:
            self._served.store(donor)
        _, cache = self._plain.ttft(self._ids)
        self._resident = Resident(self._plain, self._ids, cache)
        for at, case in enumerate(self._group.cases):
            if case.tier == "cold":
                continue
            for transport in self._transports:
                report = self._served.ask(transport, case.prompt, case.policy).report
                computed = report.prompt_tokens - report.reused_tokens
                self._computed[at, transport] = min(computed, len(self._group.base) - 1)
                self._copied[at] = report.reused_tokens
                self._resident.ttft(self._computed[at, transport])

    def run(self, rounds: Rounds, deadline: Deadline) -> Iterator[int]:
        """Measure round by round; yields the rounds done. A quick run stops in the middle of one when time is up."""
        for number in range(rounds.repetitions):
            actions = self._actions(with_full=number < rounds.full_prefills)
            self._rng.shuffle(actions)
            for action in actions:
                if deadline.passed() and number > 0:
                    return
                action()
            yield number + 1

    def _actions(self, with_full: bool) -> list[Action]:
        made: list[Action] = []
        for at, case in enumerate(self._group.cases):
            if case.tier != "cold" or with_full:
                made += [self._ours(at, case, transport) for transport in self._transports]
            if case.tier == "cold":
                continue
            made.append(self._second(("copy", at), self._copy(at)))
            if case.tier == "prefix" or (case.tier == "edited" and with_full):
                made.append(self._second(("hf_prefix", at), self._hf_prefix(case)))
        sizes = sorted(set(self._computed.values()))
        made += [self._second(("resident", size), self._resident_of(size)) for size in sizes]
        if with_full:
            made.append(self._second(("baseline",), lambda: self._plain.ttft(self._ids)[0]))
        return made

    def _ours(self, at: int, case: Case, transport: str) -> Action:
        def action() -> None:
            self.timed[at, transport].append(self._served.ask(transport, case.prompt, case.policy))

        return action

    def _second(self, key: Key, measure: Callable[[], float]) -> Action:
        return lambda: self.seconds[key].append(measure())

    def _copy(self, at: int) -> Callable[[], float]:
        return lambda: self._memcpy.seconds(self._token_bytes * self._copied[at])

    def _resident_of(self, computed: int) -> Callable[[], float]:
        return lambda: self._resident.ttft(computed)

    def _hf_prefix(self, case: Case) -> Callable[[], float]:
        computed = min(max(1, len(case.prompt) - case.common), len(self._group.base) - 1)
        return lambda: self._resident.ttft_copied(computed)

    def cells(self, dtype: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, Any]]:
        """Yield the cells that were measured."""
        for at, case in enumerate(self._group.cases):
            text = tokenizer.decode(list(case.prompt))
            tokenise_s = _tokenise_s(tokenizer, text)
            for transport in self._transports:
                if self.timed[at, transport]:
                    yield {**self._cell(at, case, transport, tokenise_s), "dtype": dtype}

    def _cell(self, at: int, case: Case, transport: str, tokenise_s: float) -> dict[str, Any]:
        timed = self.timed[at, transport]
        report = timed[-1].report
        own = [each.report.ttft_s for each in timed]
        baseline = self.seconds[("baseline",)]
        resident = self.seconds[("resident", self._computed.get((at, transport)))]
        ratios = [a / b for a, b in zip(own, resident, strict=False)]
        over = [a / b for a, b in zip(own, baseline, strict=False)]
        decodes = [each.first_decode_s for each in timed if each.first_decode_s is not None]
        return {
            "tier": case.tier,
            "tokens": self._group.tokens,
            "new_share": case.new_share,
            "transport": transport,
            "ttft_s": median(own),
            "ttft_quartiles_s": _quartiles(own),
            "first_token_s": median(each.first_token_s for each in timed),
            "baseline_ttft_s": median(baseline) if baseline else None,
            "baseline_quartiles_s": _quartiles(baseline),
            "resident_ttft_s": median(resident) if resident else None,
            "resident_quartiles_s": _quartiles(resident),
            "hf_prefix_ttft_s": _median(self.seconds[("hf_prefix", at)]),
            "copy_s": _median(self.seconds[("copy", at)]),
            "ratio_to_resident": _median(ratios),
            "ratio_to_resident_quartiles": _quartiles(ratios),
            "ratio_to_baseline": _median(over),
            "speedup": None if not over else 1.0 / median(over),
            "stages_s": _stages(timed, tokenise_s),
            "prompt_tokens": report.prompt_tokens,
            "reused_tokens": report.reused_tokens,
            "computed_tokens": report.prompt_tokens - report.reused_tokens,
            "tokens_by_tier": {str(tier): count for tier, count in report.tokens_by_tier.items() if count},
            "recompute_ratio_charged": report.recompute_ratio,
            "first_decode_s": _median(decodes),
            "repetitions": len(timed),
            "handover": None if report.handover is None else str(report.handover),
            "declined": list(dict.fromkeys(report.declined)),
            "fallback": next((each.report.fallback for each in timed if each.report.fallback), None),
        }


def _stages(timed: Sequence[Timed], tokenise_s: float) -> dict[str, float]:
    """Return means by stage; what the runtime names no stage for is the model's own pass over the new tokens."""
    names = dict.fromkeys(name for each in timed for name in each.report.stages_s)
    stages = {name: mean(each.report.stages_s.get(name, 0.0) for each in timed) for name in names}
    rest = mean(each.report.ttft_s for each in timed) - sum(stages.values())
    decodes = [each.first_decode_s for each in timed if each.first_decode_s is not None]
    made = {"tokenise": tokenise_s, **stages, "recompute": max(rest, 0.0)}
    return {**made, "first_decode": mean(decodes)} if decodes else made


def _tokenise_s(tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    marks = [time.perf_counter()]
    for _ in range(3):
        tokenizer(text, return_offsets_mapping=True, verbose=False)
        marks.append(time.perf_counter())
    return min(end - start for start, end in pairwise(marks))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _quartiles(values: Sequence[float]) -> list[float] | None:
    """Return the first and the third quartile; of fewer than three values, the least and the greatest."""
    if len(values) < 3:
        return [min(values), max(values)] if values else None
    first, _, third = quantiles(values, n=4, method="inclusive")
    return [first, third]
