"""One request, from its message to the last event."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

from kvboost.reuse import ReuseReport
from kvboost.runtime.answer import GeneratedAnswer, generate_answer
from kvboost.runtime.score import forced_logits, full_prefill, loss
from kvboost.runtime.text_stream import TextStream
from kvboost.v1 import runtime_pb2 as pb

from .inputs import Ask, new_tokens_of, token_ids_of
from .messages import report_to_proto, token_event
from .served import ServedModel
from .turns import Turn

Caller = Turn[pb.GenerateResponse]


def answer(served: ServedModel, ask: Ask, arrived_s: float, caller: Caller) -> None:
    """Answer ``ask``, which arrived at ``arrived_s`` (``perf_counter``), with events for ``caller``."""
    if caller.gone():
        return
    started_s = time.perf_counter()
    token_ids = token_ids_of(ask, served)
    ready_s = time.perf_counter()
    new_tokens = new_tokens_of(ask, len(token_ids), served)
    stages_s = {"queue": started_s - arrived_s, "tokenise": ready_s - started_s}
    message = ask.message
    # Scored or not, a request meets the cache as it was: its own chunks are put only after the comparison.
    with served.engine.writer.held() if message.score_against_full else nullcontext():
        text = TextStream(served.decode, ask.stops)
        given = _generate(served, ask, token_ids, new_tokens, text, caller)
        if caller.gone():
            return
        score = _score(served, ask, token_ids, given, new_tokens) if message.score_against_full else None
    finish = pb.Finish(
        reason="stop" if given.ended or text.stopped else "length",
        new_tokens=len(given.token_ids),
        report=report_to_proto(_with_stages(given.report, stages_s)),
        score=score,
        text=text.finish(),
        token_texts=_token_texts(served, token_ids) if message.with_token_texts else (),
    )
    caller.emit(pb.GenerateResponse(finish=finish))
    if message.wait_for_store:
        served.engine.writer.flush()  # ends: every put has a deadline


def _generate(
    served: ServedModel, ask: Ask, token_ids: list[int], new_tokens: int, text: TextStream, caller: Caller
) -> GeneratedAnswer:
    def on_token(token_id: int) -> bool:
        caller.emit(token_event(token_id, text.push(token_id)))
        return text.stopped or caller.gone()

    return generate_answer(
        served.engine, token_ids, new_tokens, ask.sampling, on_token, skip_cache=ask.message.skip_cache
    )


def _score(served: ServedModel, ask: Ask, token_ids: list[int], given: GeneratedAnswer, new_tokens: int) -> pb.Score:
    """Compare with full prefill, which comes second: reuse must not find anything warm that it did not warm itself."""
    full = full_prefill(served.engine, token_ids, new_tokens)
    reuse_logits, _ = forced_logits(served.engine, token_ids, full.answer_ids)
    lost = loss(full.logits, reuse_logits)
    # An answer that a stop text ended is compared as far as it goes.
    pairs = zip(full.answer_ids, given.token_ids, strict=False)
    text = TextStream(served.decode, ask.stops)
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


def _with_stages(report: ReuseReport, before_s: dict[str, float]) -> ReuseReport:
    """Return the report as the caller sees it: with the time before the engine was called."""
    ttft_s = report.ttft_s + sum(before_s.values())
    return replace(report, ttft_s=ttft_s, stages_s={**before_s, **report.stages_s})


def _token_texts(served: ServedModel, token_ids: list[int]) -> list[str]:
    stream = TextStream(served.decode_all)
    texts = [stream.push(token_id) for token_id in token_ids]
    texts[-1] += stream.finish()
    return texts
