"""From a request's body to what the runtime is asked."""

from __future__ import annotations

from dataclasses import dataclass

from kvboost.client.convert_runtime import Prompt
from kvboost.client.runtime_client import GenerateOptions
from kvboost.client.runtime_types import ChatMessage
from kvboost.errors import InputError
from kvboost.sampling import Sampling

from .bodies import Body, ChatBody, CompletionBody, check_extras
from .errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Ask:
    """What a runtime is asked for.

    Attributes
    ----------
    model
        As the caller named it.
    chat
        Whether the answer is a chat's turn, or a completion of a text.
    stream, include_usage
        In which form the answer goes out.
    """

    model: str
    chat: bool
    prompt: Prompt
    options: GenerateOptions
    stream: bool
    include_usage: bool


def ask_of(body: ChatBody | CompletionBody) -> Ask:
    """Read a body.

    Raises
    ------
    InputError
        If a field is out of range or not supported; the sentence names it.
    """
    check_extras(body)
    return Ask(
        model=body.model,
        chat=isinstance(body, ChatBody),
        prompt=_chat(body) if isinstance(body, ChatBody) else _text(body),
        options=_options(body),
        stream=bool(body.stream),
        include_usage=_include_usage(body),
    )


def _chat(body: ChatBody) -> list[ChatMessage]:
    roles = {"developer": "system"}
    return [ChatMessage(roles.get(message.role, message.role), message.text) for message in body.messages]


def _text(body: CompletionBody) -> str | list[int]:
    """Return the prompt: a text or token ids, alone or as the only one of a list."""
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise UnsupportedError(f"prompt holds {len(prompt)} prompts; send one in each request", param="prompt")
        return prompt[0]
    return prompt  # type: ignore[return-value]


def _options(body: ChatBody | CompletionBody) -> GenerateOptions:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    sampling = Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=stop,
    )
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
