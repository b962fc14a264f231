"""Runs the demo: a cache server and a runtime on this machine, four requests through both."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvboost.client import CacheClient, RuntimeClient
from kvboost.client.runtime_types import RuntimeInfo
from kvboost.config import Config
from kvboost.config.render import to_toml

from ..processes import server
from ..progress import step
from .outcome import Outcome
from .scenario import DemoRequest, chat, cold, edited, reordered

ANSWER_TOKENS = 32
_ANSWER_TIMEOUT_S = 600.0
_SETTLE_TIMEOUT_S = 60.0
_SETTLE_POLL_S = 0.25
_QUIET_POLLS = 4


@dataclass(frozen=True)
class Servers:
    """Clients of the two running servers, what the runtime says of itself, and whether the cache embeds chunks."""

    cache: CacheClient
    runtime: RuntimeClient
    info: RuntimeInfo
    embeds: bool


@contextmanager
def running_servers(config: Config) -> Iterator[Servers]:
    """Run both servers, configured alike, on unix sockets in a temporary folder until the block ends.

    Audits are off: every request of the demo is compared with full prefill anyway.
    """
    config = replace(config, policy=replace(config.policy, audit_rate=0.0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvboost-demo-")))
        (folder / "kvboost.toml").write_text(to_toml(config), encoding="utf-8")
        cache_socket, runtime_socket = f"{folder}/cache.sock", f"{folder}/runtime.sock"
        command = ["serve-cache", "--no-tcp", "--unix", cache_socket]
        stack.enter_context(server("Starting the cache server", command, folder))
        command = ["serve-runtime", "--no-tcp", "--unix", runtime_socket, "--cache", f"unix:{cache_socket}"]
        stack.enter_context(server("Starting the runtime, which loads the model", command, folder))
        cache = stack.enter_context(closing(CacheClient(f"unix:{cache_socket}")))
        runtime = stack.enter_context(closing(RuntimeClient(f"unix:{runtime_socket}")))
        yield Servers(cache, runtime, runtime.describe(), embeds=config.embedder.model != "none")


def four_requests(servers: Servers, seed: int, show: Callable[[Outcome], None]) -> list[Outcome]:
    """Send the four requests, one after another, and pass each outcome to ``show`` as it comes."""
    outcomes: list[Outcome] = []

    def send(request: DemoRequest) -> Outcome:
        with step(f"Request {len(outcomes) + 1} of 4, {request.name}, with reuse and by plain Hugging Face"):
            answer = servers.runtime.answer(
                request.messages,
                max_new_tokens=ANSWER_TOKENS,
                score_against_full=True,
                wait_for_store=True,
                with_token_texts=True,
                timeout_s=_ANSWER_TIMEOUT_S,
            )
            if servers.embeds:
                _wait_until_embedded(servers.cache)
        outcome = Outcome.of(request, answer)
        outcomes.append(outcome)
        show(outcome)
        return outcome

    first = send(cold())
    send(reordered(seed))
    send(edited())
    send(chat(first.request, first.answer.text))
    return outcomes


def _wait_until_embedded(cache: CacheClient) -> None:
    """Wait until the cache embeds nothing more: it would take the processor from the next request's clock."""
    end = time.monotonic() + _SETTLE_TIMEOUT_S
    before, quiet = -1, 0
    while quiet < _QUIET_POLLS and time.monotonic() < end:
        vectors = sum(namespace.vectors for namespace in cache.stats().namespaces)
        quiet = quiet + 1 if vectors == before else 0
        before = vectors
        time.sleep(_SETTLE_POLL_S)
