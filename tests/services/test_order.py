"""The runtime's order of documents: what was asked before comes first, and the answer's report agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kvboost.client.runtime_types import ChatMessage
from kvboost.documents import marked
from kvboost.errors import CacheUnavailableError, FallbackWarning, InputError
from kvboost.policy import ReusePolicy
from kvboost.reuse import ReuseReport
from kvboost.sampling import GREEDY
from kvboost.types import Tier
from tests.boosting import document
from tests.runtime_service import Running, runtime_service

SYSTEM = ChatMessage("system", "Answer from the documents, in one sentence.")
HEAD = "These documents were found for a question about words:\n\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    # A separator has 7 tokens of the demo model's, which is too short to be reused by itself; here it has 12.
    with runtime_service(policy=ReusePolicy(min_span=16, audit_rate=0.0)) as running:
        yield running


def chat_before(head: str = HEAD) -> list[ChatMessage]:
    return [SYSTEM, ChatMessage("user", head)]


def ask(running: Running, documents: Sequence[str], head: str = HEAD, question: str = "What?") -> ReuseReport:
    chat = [SYSTEM, ChatMessage("user", f"{head}{marked(documents)}{question}")]
    return running.client.answer(chat, max_new_tokens=1, sampling=GREEDY, wait_for_store=True).report


def test_documents_of_an_earlier_chat_come_first_in_its_order(running: Running) -> None:
    a, b, new = document(100), document(101), document(102)
    ask(running, [a, b])
    found = running.client.order([new, b, a], before=chat_before())
    assert found.indices == (2, 1, 0)
    assert found.given_prefix_tokens < found.prefix_tokens
    report = ask(running, found.apply([new, b, a]), question="And then?")
    # The look-up stops at the last document that is cached; what follows may go on alike by chance.
    assert report.tokens_by_tier[Tier.PREFIX] >= found.prefix_tokens > 0.6 * report.prompt_tokens
    assert running.client.order([a, b, new], before=chat_before()).indices == (0, 1, 2)


def test_a_prompt_without_a_template(running: Running) -> None:
    # Not HEAD, which is cached after another history: all behind text that was reused approximately is approximate.
    a, b, head = document(110), document(111), document(112, sentences=1)
    running.client.answer(head + marked([a, b]) + "Why?", max_new_tokens=1, wait_for_store=True)
    found = running.client.order([f"\n{b} ", a], before=head)
    assert found.indices == (1, 0)
    report = running.client.answer(head + marked([a, b]) + "How?", max_new_tokens=1).report
    assert report.tokens_by_tier[Tier.PREFIX] >= found.prefix_tokens > 0.9 * report.prompt_tokens


def test_another_history_or_an_empty_cache_moves_nothing(running: Running) -> None:
    texts = [document(120), document(121)]
    ask(running, texts)
    for before in ("", chat_before("Quite another beginning of the message:\n\n")):
        assert running.client.order(texts[::-1], before=before).indices == (0, 1)


def test_nothing_is_computed_or_stored(running: Running) -> None:
    counters, chunks = running.client.describe().counters, running.cache.stats().namespaces[0].chunks
    running.client.order([document(130)], before=chat_before())
    assert running.client.describe().counters == counters
    assert running.cache.stats().namespaces[0].chunks == chunks


def test_without_a_cache_the_order_stays(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise CacheUnavailableError("gone")

    monkeypatch.setattr(running.cache, "match", fail)
    with pytest.warns(FallbackWarning, match="keep their order: gone"):
        found = running.client.order([document(1), document(2)])
    assert (found.indices, found.prefix_tokens) == ((0, 1), 0)


def test_wrong_input_is_named(running: Running) -> None:
    order = running.client.order
    assert order([]).indices == ()
    with pytest.raises(InputError, match=r"documents\[1\] is empty"):
        order(["a", " "])
    with pytest.raises(InputError, match="not one text"):
        order("a")
    with pytest.raises(InputError, match="before must be"):
        order(["a"], before=[])
    with pytest.raises(InputError, match="role 'bot'"):
        order(["a"], before=[ChatMessage("bot", "x")])
