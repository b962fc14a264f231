"""Which model is loaded *now*: asked before and after every request.

Other weights or adapters are another namespace: reuse goes on with what belongs to them. Another dtype, other
frequencies or layers make a model that was never examined: it is served without reuse until it is boosted again.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvboost.runtime.model.fingerprint import namespace_from, tokenizer_digest
from kvboost.runtime.model.portrait import Painter, Portrait
from kvboost.runtime.model.stamp import Stamp
from kvboost.runtime.model.support import ModelSupport
from kvboost.runtime.model.training import random_module
from kvboost.types import Namespace


@dataclass(frozen=True, slots=True)
class Standing:
    """The namespace of a model as it is now, and why nothing may be reused or stored under it, if so."""

    namespace: Namespace
    reason: str = ""


class Identity:
    """Knows the namespace of one model, whatever becomes of it. Safe to use from several threads.

    Asking costs a third of a millisecond for a model of 400 modules while nothing changes. After a change the tensors
    that were written are read again, whole.

    Parameters
    ----------
    support
        What was found out about the model as it is now; only its layout and ropes count.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, support: ModelSupport, tenant: str
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer_digest(tokenizer)
        self._support = support
        self._tenant = tenant
        self._painter = Painter(model)
        self._lock = threading.Lock()
        # First the stamp: what changes while the model is read is seen at the next request.
        self._stamp = Stamp(model)
        self._first = self._painter.paint()
        # Nobody knows what a hook does to K/V: they are this model's own.
        self._only = uuid.uuid4().hex if self._first.hooks else ""
        self._standing = Standing(self._namespace(self._first))

    def now(self) -> Standing:
        """Return where the model stands."""
        with self._lock:
            if not self._stamp.holds():
                self._stamp = Stamp(self._model)
                self._standing = self._read()
            return self._standing

    def holds(self, namespace: str) -> bool:
        """Return whether K/V computed now belong to the namespace with this key."""
        standing = self.now()
        return not standing.reason and standing.namespace.key == namespace

    def _read(self) -> Standing:
        reason = self._passing_obstacle()
        if reason:
            return Standing(self._standing.namespace, reason)
        portrait = self._painter.paint()
        difference = self._first.difference(portrait)
        if difference:
            reason = f"the model changed since boost(): {difference}; boost it again for reuse"
            return Standing(self._standing.namespace, reason)
        return Standing(self._namespace(portrait))

    def _passing_obstacle(self) -> str:
        """Name what spoils K/V for the moment, or return an empty string."""
        drawing = random_module(self._model)
        if drawing is not None:
            return f"{drawing or 'the model'} is in training mode, where dropout draws at random; call model.eval()"
        own = type(self._model).prepare_inputs_for_generation
        prepare = vars(self._model).get("prepare_inputs_for_generation")
        if prepare is not None and getattr(prepare, "__func__", None) is not own:
            return (
                "the inputs of generate() are prepared by other code than the model's own, which may put virtual "
                "tokens before the prompt (prompt or prefix tuning)"
            )
        return ""

    def _namespace(self, portrait: Portrait) -> Namespace:
        return namespace_from(portrait, self._model, self._tokenizer, self._support, self._tenant, self._only)
