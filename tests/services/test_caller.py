"""A caller of the runtime: the batch's thread chooses tokens, the call's thread makes text of them."""

from __future__ import annotations

import threading

import pytest

from kvboost.runtime.serve.text_stream import TextStream
from kvboost.services.runtime_server.caller import Caller
from tests.runtime.batching.listeners import request
from tests.runtime.batching.test_faults import batch_of, ids
from tests.tiny_models import tiny_tokenizer


@pytest.mark.parametrize(("stops", "decoding"), [((), {"call"}), (("never said",), {"kvboost-batch", "call"})])
def test_text_is_made_where_the_next_token_does_not_wait_for_it(stops: tuple[str, ...], decoding: set[str]) -> None:
    tokenizer, threads, texts = tiny_tokenizer(), set[str](), list[str]()

    def decode(tokens: list[int]) -> str:
        threads.add(threading.current_thread().name)
        return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    caller = Caller(TextStream(decode, stops))

    def read() -> None:
        texts.extend(event.token.text for event in caller.events())
        texts.append(caller.text.finish())

    with batch_of() as (_, batch):
        call = threading.Thread(target=read, name="call")
        call.start()
        batch.submit(request(ids(12, 1), 20, skip_cache=True), caller)
        call.join(60)
    assert caller.ended is not None
    assert "".join(texts) == decode(list(caller.ended.answer.token_ids))
    threads.discard("MainThread")
    assert threads == decoding
