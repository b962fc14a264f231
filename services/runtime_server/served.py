"""The model that a runtime serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from kvboost.runtime.serve.engine import Engine

from .tokenising import Tokenising


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A boosted model's engine, its tokenizer, and what callers are told of them.

    Attributes
    ----------
    name
        Hub id or directory of the model.
    cache_address
        Where its cache is; empty for one in this process.
    publishes
        Whether callers may publish documents for all tenants.
    tokenising
        The tokenizer, for texts that callers send.
    """

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    name: str
    cache_address: str = ""
    publishes: bool = False
    tokenising: Tokenising = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokenising", Tokenising(self.tokenizer, self.max_context_tokens))

    @property
    def max_context_tokens(self) -> int:
        """Longest prompt and answer together; 0 if the model names no limit."""
        config = self.engine.model.config.get_text_config(decoder=True)
        return int(getattr(config, "max_position_embeddings", None) or 0)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return int(self.engine.model.get_input_embeddings().num_embeddings)

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of an answer's tokens, without special tokens."""
        return self._decode(token_ids, skip_special_tokens=True)

    def decode_all(self, token_ids: list[int]) -> str:
        """Return the text of tokens, special ones included."""
        return self._decode(token_ids, skip_special_tokens=False)

    def _decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        # Cleaning up spaces would make the text of a token depend on those that follow.
        return str(
            self.tokenizer.decode(
                token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )
