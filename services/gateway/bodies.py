"""Bodies of requests, as OpenAI's clients send them. :mod:`.reading` tells in words what does not fit them.

Fields beyond those here are judged by :func:`check_extras`: what would change the answer and is not supported is
refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvboost.wire.checks import MAX_COUNT

from .errors import UnsupportedError

# Say something about the caller or the account, not about the answer.
_IGNORED = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "parallel_tool_calls",
    }
)  # fmt: skip
# Not supported, unless the value asks for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
_INSTEAD = {"best_of": "ask for n answers"}


class StreamOptions(BaseModel):
    """What a stream says beside the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against observers of the network: there is none to add


class KVBoostOptions(BaseModel):
    """The extension ``kvboost`` of a request, as in the runtime's ``GenerateRequest``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    skip_cache: bool = False
    wait_for_store: bool = False
    score_against_full: bool = False


class Body(BaseModel):
    """What chats and completions have in common; None takes the runtime's default."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    n: int | None = Field(None, ge=1, le=128)
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    kvboost: KVBoostOptions = KVBoostOptions()


class TextPart(BaseModel):
    """A part of a message; only text is supported."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(Body):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CompletionBody(Body):
    """Body of ``POST /v1/completions``."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=5)


def check_extras(body: Body) -> None:
    """Refuse fields that are not supported, here and in the messages.

    Raises
    ------
    UnsupportedError
        Naming the field.
    """
    for name, value in (body.model_extra or {}).items():
        if name not in _IGNORED and value is not None and value not in _NEUTRAL.get(name, ()):
            raise UnsupportedError(f"{name} is not supported here; {_INSTEAD.get(name, 'leave it out')}", param=name)
    for i, message in enumerate(body.messages if isinstance(body, ChatBody) else ()):
        for name, value in (message.model_extra or {}).items():
            if name != "name" and value:
                raise UnsupportedError(
                    f"messages[{i}].{name} is not supported here; leave it out", param=f"messages[{i}].{name}"
                )
