"""What a call asks for: checked, and turned into token ids."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2.exceptions import TemplateError

from kvboost.errors import EmptyPromptError, InputError
from kvboost.sampling import Sampling
from kvboost.v1 import runtime_pb2 as pb
from kvboost.wire.convert_sampling import sampling_from_proto

from .served import ServedModel

DEFAULT_NEW_TOKENS = 256
MOST_LOGPROBS = 20
_SHORTEN = "shorten the prompt"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked request; the prompt itself is still in ``message``."""

    message: pb.GenerateRequest
    sampling: Sampling

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end the answer."""
        return tuple(self.sampling.stop)


def read_ask(message: pb.GenerateRequest) -> Ask:
    """Check everything but the prompt's length, which takes the tokenizer.

    Raises
    ------
    InputError
        If a field does not fit; the sentence names it.
    """
    sampling = sampling_from_proto(message.sampling)
    if message.score_against_full:
        if message.skip_cache:
            raise InputError("score_against_full has nothing to compare together with skip_cache; ask for one of them")
        if sampling.draws:
            raise InputError(
                "score_against_full compares greedy answers; set sampling.temperature to 0 or leave temperature, "
                "top_p and top_k out"
            )
        sampling = Sampling(temperature=0.0, stop=sampling.stop)
    if message.HasField("logprobs"):
        if message.score_against_full:
            raise InputError("logprobs is not given together with score_against_full; ask for one of them")
        if message.logprobs > MOST_LOGPROBS:
            raise InputError(f"logprobs is {message.logprobs}; ask for at most {MOST_LOGPROBS} tokens")
    _check_prompt(message)
    return Ask(message, sampling)


def token_ids_of(ask: Ask, served: ServedModel) -> list[int]:
    """Return the prompt's token ids.

    Raises
    ------
    EmptyPromptError
        If there is none.
    PromptTooLongError
        If it leaves no room for an answer.
    InputError
        If a token id is none of the model's, or the model has no chat template.
    """
    kind = ask.message.WhichOneof("input")
    if kind == "prompt":
        ids = served.tokenising.prompt_ids(ask.message.prompt, kind, _SHORTEN)
    elif kind == "chat":
        ids = served.tokenising.prompt_ids(chat_text(ask.message.chat, served), kind, _SHORTEN, special=False)
    else:
        ids = list(ask.message.token_ids.ids)
        served.tokenising.check_length(len(ids), str(kind), _SHORTEN)
        _check_ids(ids, served.vocab_size)
    if not ids:
        raise EmptyPromptError(f"{kind} has no tokens; the model needs at least one to go on from")
    return ids


def new_tokens_of(ask: Ask, prompt_tokens: int, served: ServedModel) -> int:
    """Return how many tokens the answer may have: what was asked for, as far as the context has room."""
    wanted = ask.message.max_new_tokens or DEFAULT_NEW_TOKENS
    limit = served.max_context_tokens
    return min(wanted, limit - prompt_tokens) if limit else wanted


def _check_prompt(message: pb.GenerateRequest) -> None:
    kind = message.WhichOneof("input")
    if kind is None:
        raise EmptyPromptError("input is missing; send one of prompt, chat and token_ids")
    if kind == "prompt" and not message.prompt:
        raise EmptyPromptError("prompt is empty; the model needs something to go on from")
    if kind == "chat" and not message.chat.messages:
        raise EmptyPromptError("chat.messages is empty; send at least one message")
    if kind == "token_ids" and not message.token_ids.ids:
        raise EmptyPromptError("token_ids.ids is empty; send at least one token")
    check_roles(message.chat)


def check_roles(chat: pb.ChatMessages) -> None:
    """Refuse a chat with a role that no template knows.

    Raises
    ------
    InputError
    """
    for i, turn in enumerate(chat.messages):
        if turn.role not in ROLES:
            raise InputError(f"chat.messages[{i}].role {turn.role!r} is unknown; use one of {', '.join(ROLES)}")


def chat_text(chat: pb.ChatMessages, served: ServedModel) -> str:
    """Return a chat as the model's template writes it, special tokens included, up to where the assistant speaks.

    Raises
    ------
    InputError
        If the model has no chat template, or the chat does not fit it.
    """
    if served.tokenizer.chat_template is None:
        raise InputError("chat needs a chat template, and this model's tokenizer has none; send prompt instead")
    turns = [{"role": turn.role, "content": turn.content} for turn in chat.messages]
    try:
        return str(served.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
    except TemplateError as error:
        raise InputError(f"chat does not fit the model's chat template: {error}") from error


def _check_ids(ids: list[int], vocab_size: int) -> None:
    for i, token in enumerate(ids):
        if token >= vocab_size:
            raise InputError(f"token_ids.ids[{i}] is {token}; the model's tokens are below {vocab_size}")
