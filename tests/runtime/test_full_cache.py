"""A chat finds its last turn again: beside other users of a document, and in a cache that is full."""

import pytest
import torch

from kvboost.index import LocalCache
from kvboost.policy import ReusePolicy
from kvboost.runtime.model.support import examine
from kvboost.types import Tier
from tests.boosting import GREEDY, boosted, document, new_cache, prompt, reused, warm
from tests.tiny_models import random_ids, tiny_model

PREFIX = ReusePolicy(tiers=("prefix",), worth_it=False, audit_rate=0.0)


@pytest.mark.parametrize(("arch", "policy"), [("gpt2", None), ("llama", PREFIX)])
def test_every_users_chat_over_one_document_is_stored_where_histories_alone_count(arch, policy):
    shared = document(1, sentences=6)
    with boosted(arch, cache=new_cache(max_variants=2), policy=policy) as model:
        for user in range(5):
            warm(model, prompt(document(100 + user), shared))
            again = prompt(document(100 + user), shared, question="And then, what came of all of it?")
            model.generate(again, **GREEDY)
            assert reused(model, Tier.PREFIX) > again.shape[1] / 2, user


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_the_next_turn_of_a_chat_in_a_full_cache_is_reused(share):
    model = tiny_model("llama", max_position_embeddings=2048)
    budget_tokens = 1600
    chat = random_ids(int(budget_tokens * share), 7)
    # Tables and vectors take bytes too: of chunks as short as a tiny model's, nearly as many as their K/V.
    cache = LocalCache(int(budget_tokens * examine(model).layout.token_bytes * 1.6))
    with boosted(model=model, cache=cache, policy=PREFIX) as fast:
        for number in range(round(2.5 / share)):
            for _ in range(2):
                warm(fast, random_ids(chat.shape[1], 100 + number))
        assert cache.stats().namespaces[0].evicted_chunks > 0
        warm(fast, chat)
        for turn in range(3):
            before = chat.shape[1]
            chat = torch.cat([chat, random_ids(40, 900 + turn)], 1)
            warm(fast, chat)
            assert reused(fast, Tier.PREFIX) >= before - 1
