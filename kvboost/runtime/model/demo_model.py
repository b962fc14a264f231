"""Loading models, and the demo model: SmolLM2-135M-Instruct without a model hub.

The registry package holds a GGUF file. It is read once with the ``gguf`` library and written to the user's
cache directory as an ordinary Hugging Face model: float32 safetensors, a fast tokenizer, generation settings.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from kvboost.assets import DEMO_MODEL, Progress, build_once, default_cache_dir, demo_gguf
from kvboost.errors import AssetError
from kvboost.extras import require

if TYPE_CHECKING:
    from gguf import GGUFReader

_CONVERSION = 1  # raise when the conversion writes something else, so that old directories are not reused
_CONTROL_TOKEN = 3

_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_model(
    model: str | Path | None = None,
    dtype: torch.dtype | str = "auto",
    *,
    device: str = "auto",
    revision: str = "",
    progress: Progress | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, ready for inference.

    Parameters
    ----------
    model
        Hub id or local directory; None or empty for the demo model.
    dtype
        Torch dtype or its name; ``"auto"`` keeps the dtype that the weights are stored in.
    device
        Where the weights go, as torch names it; ``"auto"`` takes a GPU where there is one.
    revision
        Branch, tag or commit on the hub; empty for the newest.

    Raises
    ------
    AssetError
        If the model cannot be loaded.
    """
    source = model or demo_model_dir(progress=progress)
    pinned = {"revision": revision} if revision else {}
    with (progress or contextlib.nullcontext)(f"Loading {source}"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **pinned)
            loaded = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **pinned)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise AssetError(
                f"model {str(source)!r} cannot be loaded ({reason}); give a local directory or a hub id"
            ) from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return loaded.to(device).eval(), tokenizer


def demo_model_dir(cache_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Return a local directory of SmolLM2-135M-Instruct, float32, converting it on the first call.

    Raises
    ------
    AssetError
        If the registry cannot be reached, or the file is not the expected one.
    MissingExtraError
        If what converts it is not installed.
    """
    target = demo_model_path(Path(cache_dir) if cache_dir is not None else default_cache_dir())
    with build_once(target) as scratch:
        if scratch is not None:
            require("demo", "the demo model (model.name_or_path names another)")
            source = demo_gguf(cache_dir, progress)
            with (progress or contextlib.nullcontext)("Converting SmolLM2-135M-Instruct to safetensors"):
                _convert(source, scratch)
    return target


def demo_model_path(root: Path) -> Path:
    """Return where below the cache directory ``root`` the converted demo model lies, or will lie."""
    return root / f"smollm2-135m-instruct-{DEMO_MODEL.version}-hf{_CONVERSION}"


def _convert(source: Path, target: Path) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(_weights(reader, config), strict=False, assign=True)
    if unexpected or missing != ["lm_head.weight"]:
        raise AssetError(f"{source} does not hold a Llama model with tied embeddings; remove it and try again")
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(target)
    _tokenizer(fields).save_pretrained(target)


def _config(fields: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        rms_norm_eps=round(fields["llama.attention.layer_norm_rms_epsilon"], 9),
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _weights(reader: GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        part = tensor.name.removesuffix(".weight")
        if not part.startswith("blk."):
            state[f"{_GLOBAL_NAMES.get(part, part)}.weight"] = weight
            continue
        _, layer, part = part.split(".")
        if part in heads:
            weight = _half_split(weight, heads[part])
        state[f"model.layers.{layer}.{_LAYER_NAMES.get(part, part)}.weight"] = weight
    return state


def _half_split(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder the rows ``[num_heads * head_dim, hidden]`` from interleaved RoPE pairs to half-split ones."""
    rows, hidden = weight.shape
    return weight.view(num_heads, rows // num_heads // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden)


def _tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # Numbers are split into digits first: without it some texts tokenise differently from llama.cpp.
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(
        [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL_TOKEN]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
