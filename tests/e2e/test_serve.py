"""``kvboost serve`` on the real model: a chat of five turns through OpenAI's client."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from kvboost.services.demo.documents import documents

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]

QUESTIONS = (
    "What are these texts about?",
    "Say more about the first one.",
    "And the second one?",
    "Which of them is the longest?",
    "Thank you. Which one should I read first?",
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    command = [sys.executable, "-m", "kvboost.services.cli", "serve", "--port", "0"]
    folder: Path = tmp_path_factory.mktemp("serve")
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(found.group() for line in process.stdout if (found := re.search(r"http://\S+/v1", line)))
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_every_turn_after_the_first_is_cached_and_answered_as_by_the_plain_model(client: OpenAI) -> None:
    (model,) = [one.id for one in client.models.list()]
    context = "\n\n".join(str(text) for text in documents()[:3])
    turns = [{"role": "user", "content": f"{context}\n\n{QUESTIONS[0]}"}]
    for number, question in enumerate([*QUESTIONS[1:], ""]):
        answer, plain = (
            client.chat.completions.create(
                model=model,
                messages=turns,  # type: ignore[arg-type]
                temperature=0,
                max_tokens=24,
                extra_body={"kvboost": {"skip_cache": skip, "wait_for_store": not skip}},
            )
            for skip in (False, True)
        )
        said = answer.choices[0].message.content
        assert said == plain.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        assert number == 0 or cached >= 0.95 * answer.usage.prompt_tokens
        turns += [{"role": "assistant", "content": said or ""}, {"role": "user", "content": question}]
