"""Text from files and on its way to a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvboost import config
from kvboost.errors import ConfigError, InputError, PromptError
from kvboost.services.documents import read_documents
from kvboost.services.prompts import read_prompt
from kvboost.texts import check_text, read_text

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("raw", [BOM + "é\n".encode(), "é\r\n".encode(), "é\n".encode("utf-16"), BOM + "é\r".encode()])
def test_a_mark_at_the_head_of_a_file_is_no_part_of_its_text(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(raw)
    assert read_text(file) == "é\n"
    assert read_prompt(str(file)) == "é\n"
    (document,) = read_documents([str(file)])
    assert document.text == "é\n"


def test_a_mark_at_the_head_of_json_and_toml_is_no_part_of_them(tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_bytes(BOM + b'[{"role": "user", "content": "a"}]')
    assert read_prompt(str(chat)) == [{"role": "user", "content": "a"}]
    lines = tmp_path / "all.jsonl"
    lines.write_bytes(BOM + b'{"text": "a"}\r\n{"text": "b"}')
    assert [one.text for one in read_documents([str(lines)])] == ["a", "b"]
    settings = tmp_path / "kvboost.toml"
    settings.write_bytes(BOM + b"[policy]\nthreshold = 0.9\n")
    assert config.load(settings, {}).config.policy.threshold == 0.9


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("a.txt", b"a\xff", "a.txt is not UTF-8 text (byte 1); convert it first"),
        ("a.txt", b"\xff\xfea", "a.txt is not UTF-16 text (byte 2); convert it first"),
        ("a.json", b'[{"role": "user", "content": "\\ud800"}]', "messages[0].content holds half of a surrogate pair"),
        ("a.json", b"[" * 100_000, "a nesting that no chat needs"),
        ("a.json", b"[" + b"9" * 5000 + b"]", "holds a number"),
    ],
)
def test_prompts_that_are_no_text_are_told_in_one_sentence(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    file = tmp_path / name
    file.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        read_prompt(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_documents_and_settings_that_are_no_text_are_told_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a\xff")
    with pytest.raises(InputError, match=r"a\.txt is not UTF-8 text \(byte 1\); convert it first"):
        read_documents([str(file)])
    with pytest.raises(ConfigError, match=r"configuration file .*a\.txt is not UTF-8 text \(byte 1\)"):
        config.load(file, {})
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'{"text": "\\udc00"}')
    with pytest.raises(InputError, match=r"a\.jsonl:1: text holds half of a surrogate pair"):
        read_documents([str(lines)])
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompt("a\0b")


def test_half_a_surrogate_pair_is_no_text() -> None:
    check_text("a😀", "prompt")
    with pytest.raises(InputError, match="prompt holds half of a surrogate pair at character 1; send whole characters"):
        check_text("a\ud83d", "prompt")
