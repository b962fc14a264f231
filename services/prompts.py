"""Prompts from files."""

from __future__ import annotations

import json
import sys
from typing import Any

from kvboost.errors import EmptyPromptError, InputError, PromptError
from kvboost.texts import check_text, decoded, read_text

Prompt = str | list[dict[str, str]]
"""A text, or a chat as a list of ``role`` and ``content``."""


def read_prompt(name: str) -> Prompt:
    """Read a prompt: a chat where ``name`` ends in ``.json``, a text otherwise, standard input for ``-``.

    Raises
    ------
    PromptError
        If the file cannot be read, is empty, or is no chat although it ends in ``.json``.
    """
    if name == "-":
        text = decoded(sys.stdin.buffer.read(), "the prompt on standard input", PromptError)
    else:
        text = read_text(name, f"prompt file {name}", PromptError)
    if not text.strip():
        raise EmptyPromptError(f"prompt file {name} is empty; write the prompt into it")
    return _chat(name, text) if name.endswith(".json") else text


def prompt_ids(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Return the token ids of a prompt, special tokens and chat template included.

    Raises
    ------
    InputError
        If the prompt is a chat, and the tokenizer has no chat template or one that it does not fit.
    """
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if tokenizer.chat_template is None:
        raise InputError("the model's tokenizer has no chat template; give the prompt as a text")
    from jinja2.exceptions import TemplateError

    try:
        encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    except TemplateError as error:
        raise InputError(f"the chat does not fit the model's chat template: {error}") from error
    return list(encoded["input_ids"])


def _chat(name: str, text: str) -> Prompt:
    try:
        chat = json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(f"prompt file {name} is not JSON (line {error.lineno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise PromptError(f"prompt file {name} holds a number or a nesting that no chat needs; leave it out") from error
    messages = chat.get("messages") if isinstance(chat, dict) else chat
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise PromptError(f'prompt file {name} must hold a list of {{"role": ..., "content": ...}}, both texts')
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            check_text(message[key], f"prompt file {name}: messages[{i}].{key}")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
