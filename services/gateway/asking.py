"""From a request's body to what the runtime is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvboost.client.convert_runtime import Prompt
from kvboost.client.runtime_client import GenerateOptions
from kvboost.client.runtime_types import ChatMessage
from kvboost.errors import EmptyPromptError, InputError
from kvboost.sampling import Sampling

from .bodies import Body, ChatBody, CompletionBody, check_extras
from .errors import FieldError

_SEEDS = 1 << 64
MOST_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Ask:
    """What a runtime is asked for.

    Attributes
    ----------
    model
        As the caller named it.
    chat
        Whether the answer is a chat's turn, or a completion of a text.
    prompts, n
        What is answered, and how many times each.
    stream, include_usage
        In which form the answer goes out.
    """

    model: str
    chat: bool
    prompts: Sequence[Prompt]
    options: GenerateOptions
    stream: bool
    include_usage: bool
    n: int = 1

    def choices(self) -> list[Choice]:
        """Return what is asked of a runtime, one answer after the other, all answers to one prompt together.

        The first answer to a prompt ends only when its K/V are stored, so the others reuse them. Each draws from a
        seed of its own: the one given, plus its number among the answers to its prompt.
        """
        return [
            Choice(place * self.n + i, i == 0, prompt, self._options_of(i))
            for place, prompt in enumerate(self.prompts)
            for i in range(self.n)
        ]

    def _options_of(self, i: int) -> GenerateOptions:
        options = self.options.copy()
        sampling = options.get("sampling")
        if sampling is not None and sampling.seed is not None:
            options["sampling"] = replace(sampling, seed=(sampling.seed + i) % _SEEDS)
        if i == 0 and self.n > 1:
            options["wait_for_store"] = True
        return options


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer.

    Attributes
    ----------
    index
        Its number among the answers to the request.
    first
        Whether it is the first answer to its prompt: the one whose prompt is counted.
    """

    index: int
    first: bool
    prompt: Prompt
    options: GenerateOptions


def ask_of(body: ChatBody | CompletionBody) -> Ask:
    """Read a body.

    Raises
    ------
    InputError
        If a field is out of range or not supported; the sentence names it.
    """
    check_extras(body)
    prompts: list[Prompt] = [_chat(body)] if isinstance(body, ChatBody) else _texts(body)
    n = body.n or 1
    if n * len(prompts) > MOST_CHOICES:
        raise InputError(f"prompt holds {len(prompts)} prompts, with n {n}; ask for at most {MOST_CHOICES} answers")
    return Ask(
        model=body.model,
        chat=isinstance(body, ChatBody),
        prompts=prompts,
        n=n,
        options=_options(body),
        stream=bool(body.stream),
        include_usage=_include_usage(body),
    )


def _chat(body: ChatBody) -> list[ChatMessage]:
    if not body.messages:
        raise EmptyPromptError("messages is empty; send at least one message")
    roles = {"developer": "system"}
    return [ChatMessage(roles.get(message.role, message.role), message.text) for message in body.messages]


def _texts(body: CompletionBody) -> list[Prompt]:
    """Return the prompts: texts or lists of token ids; of one alone, a list of it."""
    prompt: Any = body.prompt
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    prompts = list(prompt) if several else [prompt]
    if not all(prompts):
        raise EmptyPromptError("prompt is empty; the model needs something to go on from")
    return prompts


def _options(body: ChatBody | CompletionBody) -> GenerateOptions:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    try:
        sampling = Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            repetition_penalty=body.repetition_penalty,
            seed=body.seed,
            stop=stop,
        )
    except InputError as error:  # its sentence begins with the field
        raise FieldError(str(error), str(error).partition(" ")[0]) from None
    return GenerateOptions(
        max_new_tokens=_max_tokens(body) or 0,
        sampling=sampling,
        skip_cache=body.kvboost.skip_cache,
        wait_for_store=body.kvboost.wait_for_store,
        score_against_full=body.kvboost.score_against_full,
        logprobs=_logprobs(body),
    )


def _logprobs(body: ChatBody | CompletionBody) -> int | None:
    """Return how many tokens to tell beside the chosen one; None for no log-probabilities."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.top_logprobs and not body.logprobs:
        raise InputError("top_logprobs needs logprobs; set logprobs to true, or leave top_logprobs out")
    return body.top_logprobs or 0 if body.logprobs else None


def _max_tokens(body: ChatBody | CompletionBody) -> int | None:
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    if newer is not None and body.max_tokens not in (None, newer):
        raise InputError("max_tokens and max_completion_tokens differ; send one of them")
    return newer if newer is not None else body.max_tokens


def _include_usage(body: Body) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InputError("stream_options is for streams; set stream to true, or leave it out")
    return body.stream_options.include_usage
