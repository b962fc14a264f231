"""What follows a prompt's passes, whoever ran them: its chunks are stored, its audit begins, its figures count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from kvboost.reuse import ReuseReport
from kvboost.runtime.audit.audit import Audit
from kvboost.runtime.audit.shadow import Watch
from kvboost.runtime.cost.cost_gate import Costs
from kvboost.runtime.prepare.prepared import Prepared
from kvboost.runtime.serve.storing import Part, Storer
from kvboost.types import PutReceipt


@dataclass(frozen=True, slots=True)
class Passes:
    """How the passes of one prompt went.

    Attributes
    ----------
    ttft_s
        From the call to the first token's logits.
    prompt_s
        The pass over what was not reused; None where it cannot be told from other work.
    before_s
        Seconds by stage, of what was not preparing the prompt: waiting for its turn, setting up its pass.
    """

    ttft_s: float
    prompt_s: float | None = None
    before_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """A prompt that is accounted for.

    Attributes
    ----------
    stored
        What becomes of its chunks, in the background; None where nothing is stored.
    """

    report: ReuseReport
    stored: Future[PutReceipt] | None


@dataclass(frozen=True, slots=True)
class Finisher:
    """Accounts for the prompts of one boosted model, each once.

    Attributes
    ----------
    unchanged
        Whether K/V of the model as it is now belong to the namespace with this key.
    """

    costs: Costs
    audit: Audit
    storer: Storer
    unchanged: Callable[[str], bool]

    def watch(self, prepared: Prepared) -> Watch | None:
        """Return who watches the prompt's passes, if it was drawn for an audit."""
        return Watch() if self.audit.wants(prepared) else None

    def finish(
        self,
        prepared: Prepared,
        watch: Watch | None,
        ids: list[int],
        passes: Passes,
        namespace: str = "",
        keep: bool = False,
    ) -> Finished:
        """Store and audit the tokens ``ids``, prompt and answer, and return the report.

        Parameters
        ----------
        namespace
            Where the K/V go; without one, where they were prepared.
        keep
            Whether the caller is to own the slab.
        """
        report = prepared.report(passes.ttft_s)
        report = replace(report, stages_s={**passes.before_s, **report.stages_s})
        if not prepared.stores:
            return Finished(report, None)
        if not self.unchanged(prepared.namespace):  # since it was prepared: its K/V are of two models
            self.costs.counters.add("unstored_changed")
            return Finished(self.costs.priced(report), None)
        if passes.prompt_s is not None:
            self.costs.observe(report, passes.prompt_s)
        part = Part(prepared.splice.cache, caller_owns=keep)
        continues = prepared.may_be_continued and not namespace
        stored = self.storer.store(prepared.plan, ids, part, namespace or prepared.namespace, continues)
        if watch is not None:
            self.audit.submit(prepared, watch, 0, ids)
        return Finished(self.costs.priced(report), stored)
