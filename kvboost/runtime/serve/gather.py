"""The first part of serving a prompt: what was put before is there, and what it may borrow is in its slab.

Everything here may wait for the cache, and nothing runs the model: a batch does it beside the thread that decodes. All
of one prompt's waiting together ends at the request's deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvboost.circuit_breaker import fault_of
from kvboost.deadline import remaining_s, within
from kvboost.runtime.prepare.prepare import Preparer
from kvboost.runtime.prepare.prepared import Gathered, Stages
from kvboost.runtime.serve.writer import Writer

if TYPE_CHECKING:
    from kvboost.policy import ReusePolicy
    from kvboost.runtime.control.controller import Controller

STRANGERS_S = 0.05
"""How long a prompt waits for puts that it does not go on from, at most.

What one user sent is there for the same user's next request, in whatever order; under load, when something is always
being put, nobody waits long for everybody.
"""


@dataclass(frozen=True, slots=True)
class Gatherer:
    """Gathers for the prompts of one boosted model. Safe to use from several threads.

    Attributes
    ----------
    timeout_s
        What one prompt may wait for the cache in all, for earlier puts included.
    """

    preparer: Preparer
    writer: Writer
    timeout_s: float

    def gather(
        self,
        token_ids: Sequence[int],
        new_tokens: int,
        policy: ReusePolicy | None,
        controller: Controller | None,
        declined: str | None = None,
    ) -> Gathered:
        """Wait for the puts that this prompt goes on from, then gather; see :meth:`Preparer.gather`.

        Parameters
        ----------
        declined
            Not None: nothing is looked up, waited for or stored; where it is not empty, the report gives it as reason.
        """
        if declined is not None:
            return self.preparer.blank(token_ids, new_tokens, declined)
        with within(self.timeout_s):
            stages = self.settle(token_ids)
            return self.preparer.gather(token_ids, new_tokens, policy, controller, stages=stages)

    def settle(self, token_ids: Sequence[int] | None = None) -> Stages:
        """Wait for earlier puts, inside the deadline: those that a prompt goes on from, and for others a moment.

        None waits for all alike: a caller that sends one prompt after the other put them all. At most half of the time
        goes into it, or none would be left to find out that the cache does not answer; then it is not waited for.
        Returns the time that it took, as the stage "puts".
        """
        stages = Stages()
        with stages.measure("puts"):
            self._settle(token_ids)
        return stages

    def _settle(self, token_ids: Sequence[int] | None) -> None:
        most_s = 0.0 if fault_of(self.preparer.cache) else self.timeout_s / 2
        if token_ids is None:
            self.writer.flush(min(remaining_s(), most_s))
            return
        self.writer.await_turn(token_ids, min(remaining_s(), most_s))
        self.writer.flush(min(remaining_s(), most_s, STRANGERS_S))
