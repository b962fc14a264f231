"""One request, from its message to the last event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import grpc

from kvboost.errors import SupportError
from kvboost.runtime.batching import Batch, BatchRequest, Ended, with_stages
from kvboost.runtime.serve.answer import generate_answer
from kvboost.runtime.serve.call import end_tokens
from kvboost.runtime.serve.text_stream import TextStream
from kvboost.runtime.tools.score import forced_logits, full_prefill, loss
from kvboost.v1 import runtime_pb2 as pb

from .caller import Caller
from .inputs import Ask, new_tokens_of, token_ids_of
from .messages import report_to_proto
from .served import ServedModel
from .token_bytes import TokenLogprobs


def answer(
    served: ServedModel, batch: Batch, ask: Ask, arrived_s: float, context: grpc.ServicerContext
) -> Iterator[pb.GenerateResponse]:
    """Answer ``ask``, which arrived at ``arrived_s`` (``perf_counter``); for a caller that goes away, nothing more."""
    started_s = time.perf_counter()
    token_ids = token_ids_of(ask, served)
    caller = _caller(served, batch, ask)
    request = BatchRequest(
        token_ids=tuple(token_ids),
        max_new_tokens=new_tokens_of(ask, len(token_ids), served),
        sampling=ask.sampling,
        arrived_s=arrived_s,
        stages_s={"tokenise": time.perf_counter() - started_s},
        skip_cache=ask.message.skip_cache,
        on_logprobs=caller.on_logprobs if ask.message.HasField("logprobs") else None,
        top_logprobs=ask.message.logprobs,
    )
    scored = _Scored(served, ask, request, caller)
    if not context.add_callback(caller.leave):
        return
    if ask.message.score_against_full:
        batch.budget.check(request)
        batch.submit_alone(scored.run, caller)
    else:
        batch.submit(request, caller)
    yield from caller.events()
    ended = caller.ended
    if ended is None:
        return
    yield pb.GenerateResponse(finish=_finish(served, ask, token_ids, caller, ended, scored.score))
    if ask.message.wait_for_store:
        served.engine.writer.flush()  # ends: every put has a deadline


def _caller(served: ServedModel, batch: Batch, ask: Ask) -> Caller:
    text = TextStream(served.decode, ask.stops)
    if not ask.message.HasField("logprobs"):
        return Caller(text)
    if batch.obstacle:
        raise SupportError(f"logprobs is not given for this model, since {batch.obstacle}; leave it out")
    return Caller(text, TokenLogprobs(served, end_tokens(served.engine.model)))


def _finish(
    served: ServedModel, ask: Ask, token_ids: list[int], caller: Caller, ended: Ended, score: pb.Score | None
) -> pb.Finish:
    given = ended.answer
    rest = caller.text.finish()  # may find a stop text that ends within the last token
    return pb.Finish(
        reason="stop" if given.ended or caller.text.stopped else "length",
        new_tokens=len(given.token_ids),
        report=report_to_proto(given.report),
        score=score,
        text=rest,
        token_texts=_token_texts(served, token_ids) if ask.message.with_token_texts else (),
    )


class _Scored:
    """A request that is compared with full prefill: with the model to itself, so that the times mean something."""

    def __init__(self, served: ServedModel, ask: Ask, request: BatchRequest, caller: Caller) -> None:
        self.score: pb.Score | None = None
        self._served, self._ask, self._request, self._caller = served, ask, request, caller
        self._made_s = time.perf_counter()

    def run(self) -> None:
        """Answer, then compare."""
        waited_s = {**self._request.stages_s, "queue": time.perf_counter() - self._made_s}
        request, caller = self._request, self._caller
        # Scored or not, a request meets the cache as it was: its own chunks are put only after the comparison.
        with self._served.engine.writer.held():
            given = generate_answer(
                self._served.engine,
                request.token_ids,
                request.max_new_tokens,
                request.sampling,
                lambda token_id: caller.on_token(token_id) or caller.gone(),
            )
            if caller.gone():
                return
            self.score = self._compare(given.token_ids)
        caller.on_end(Ended(replace(given, report=with_stages(given.report, waited_s))))

    def _compare(self, given: tuple[int, ...]) -> pb.Score:
        """Compare with full prefill, which comes second: reuse must not find warm what it did not warm itself."""
        engine, request = self._served.engine, self._request
        full = full_prefill(engine, request.token_ids, request.max_new_tokens)
        reuse_logits, _ = forced_logits(engine, request.token_ids, full.answer_ids)
        lost = loss(full.logits, reuse_logits)
        # An answer that a stop text ended is compared as far as it goes.
        pairs = zip(full.answer_ids, given, strict=False)
        text = TextStream(self._served.decode, self._ask.stops)
        full_answer = "".join(map(text.push, full.answer_ids)) + text.finish()
        return pb.Score(
            kl_mean=lost.kl_mean,
            kl_first=lost.kl_first,
            top1_agreement=lost.top1_agreement,
            first_divergence=next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None),
            positions=lost.positions,
            full_ttft_s=full.ttft_s,
            full_answer=full_answer,
        )


def _token_texts(served: ServedModel, token_ids: list[int]) -> list[str]:
    stream = TextStream(served.decode_all)
    texts = [stream.push(token_id) for token_id in token_ids]
    texts[-1] += stream.finish()
    return texts
