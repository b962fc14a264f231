"""Tiny random models and a tiny tokenizer, for tests that compare K/V and logits exactly.

Weights are drawn wide, so that attention is far from uniform and a wrong key or position shows in the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCAB_SIZE = 512
MAX_POSITION = 512
PAD, BOS, EOS = "<pad>", "<s>", "</s>"

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITION,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_HEAD_DIM: dict[str, Any] = {"head_dim": 16}

SUPPORTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": _HEAD_DIM,
    "mistral": {"sliding_window": None, **_HEAD_DIM},
    "gemma": _HEAD_DIM,
    "phi": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}},
    "stablelm": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}},
    "cohere": {"logit_scale": 1.0},
    "olmo2": {},
    "phi3": {},
    "glm4": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        **_HEAD_DIM,
    },
}
"""Plain RoPE in every layer, over the whole context."""

SLIDING: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 32, "query_pre_attn_scalar": 16, "num_hidden_layers": 4, **_HEAD_DIM},
    "gemma3_text": {
        "sliding_window": 32,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        **_HEAD_DIM,
    },
}
"""Some layers see only a window; Gemma 3 has another RoPE base in those."""

UNSUPPORTED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": MAX_POSITION},
    "bloom": {},
    "mamba": {"state_size": 8},
    "falcon_mamba": {"state_size": 8},
}
"""Learned positions, ALiBi, recurrent layers."""

TRAPS: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layer_interval": 2},
    "cohere2": {
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "logit_scale": 1.0,
        **_HEAD_DIM,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "first_k_dense_replace": 3,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    },
}
"""RoPE, but not everywhere: layers without it (SmolLM3, Cohere 2), rotated dimensions that come last (DeepSeek)."""

ROPE_SCALING: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {
        "short_factor": [1.0 + i / 16 for i in range(8)],
        "long_factor": [2.0 + i / 4 for i in range(8)],
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}
"""Variants of ``rope_parameters``, for Llama: ``tiny_model("llama", rope="yarn")``."""


def tiny_model(
    arch: str, dtype: torch.dtype = torch.float32, seed: int = 0, rope: str | None = None, **overrides: Any
) -> PreTrainedModel:
    """Build a random causal model of 3-4 layers, hidden size 64, 4 heads over 2 K/V heads, in eval mode.

    ``arch`` is a key of one of the tables above (``"gemma3"`` is short for ``"gemma3_text"``), ``rope`` one of
    :data:`ROPE_SCALING`; ``overrides`` go into the configuration.
    """
    arch = "gemma3_text" if arch == "gemma3" else arch
    table = SUPPORTED | SLIDING | UNSUPPORTED | TRAPS
    settings = _COMMON | table[arch] | _rope(rope) | overrides
    # Attribute maps (n_embd for hidden_size, ...) let one set of names configure every architecture.
    config = AutoConfig.for_model(arch, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _widen(model, torch.Generator().manual_seed(seed))
    return model.to(dtype).eval()


def random_ids(length: int, seed: int = 0, batch: int = 1) -> torch.Tensor:
    """Return token ids ``[batch, length]`` without the special ones."""
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(seed))


def _rope(name: str | None) -> Mapping[str, Any]:
    if name is None:
        return {}
    return {"rope_parameters": {"rope_type": name, "rope_theta": 10_000.0, **ROPE_SCALING[name]}}


@torch.no_grad()
def _widen(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Redraw matrices with a spread that keeps attention scores near 2.5 in standard deviation, and vary norms."""
    embedding = 0.5 / (model.config.hidden_size**0.5 if "gemma" in model.config.model_type else 1.0)
    for name, weight in model.named_parameters():
        if "mixer" in name:  # a recurrent layer diverges with wide weights
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            weight.copy_(noise * (embedding if "embed" in name else 0.2))
        else:
            weight.add_(0.1 * noise + (0.6 if "q_norm" in name or "k_norm" in name else 0.0))


_WORDS = """
the of and to in is was for on that with as it be are this by from at have or had not but what all were when we
there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only
way find use may water long little very after words called just where most know get through back much before go good
new write our used me man too any day same right look think also around another came come work three must because
does part even place well such here take why things help put years different away again off went old number great
tell men say small every found still between name should home big give air line set own under read last never us left
end along while might next sound below saw something thought both few those always looked show large often together
asked house world going want school important until form food keep children feet land side without boy once animals
life enough took four head above kind began almost live page got earth need far hand high year mother light country
father let night picture being study second soon story since white ever paper hard near sentence better best across
during today however sure knew try told young sun thing whole hear example heard several change answer room sea against
top turned learn point city play toward five himself usually money seen didn car morning given ship area one zero
"""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tiny_tokenizer(**overrides: Any) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on a few hundred words: ids below 512, BOS, chat markers, left padding."""
    special = [PAD, BOS, EOS, "<|system|>", "<|user|>", "<|assistant|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([" ".join(_WORDS.split()), _WORDS, ". " * 50, "\n\n" * 50], trainer)
    settings: dict[str, Any] = {
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "padding_side": "left",
        "model_max_length": MAX_POSITION,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **settings | overrides)
