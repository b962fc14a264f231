"""Small real tokenizers and prompt text for the segmenter's tests."""

import string
from functools import cache

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
UNUSUAL = "ï。！？，你好“他说：走吧”她笑了！真的然后我们去北京看很多东西吃字😀👍🏽"
TRAINING = """The cache holds keys and values of every chunk that a prompt was cut into. A chunk ends with a sentence.
He went home, and then he was tired; the weather was good. Nobody asked why the question had been put to them.

# Heading

- an item of a list, with words
1. another item

```python
def function(argument):
    return argument + 1
```
"""


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator([TRAINING] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", additional_special_tokens=["<|im_start|>", "<|im_end|>"]
    )


@cache
def metaspace() -> PreTrainedTokenizerFast:
    """Unigram pieces with a leading space mark, as SentencePiece models have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False,
        initial_alphabet=sorted({*string.printable, *UNUSUAL}),
    )  # fmt: skip
    tokenizer.train_from_iterator([TRAINING] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of ``text`` without a BOS."""
    return tokenizer.encode(text, add_special_tokens=False)


_WORDS = [
    "the",
    "cache",
    "He",
    "went",
    "home",
    "tired",
    "3.14",
    "Dr.",
    "e.g.",
    "https://a.b/c?d=e.f",
    "prompt",
    "naïve",
]
_MARKS = [".", "!", "?", ".", ".", "...", ';"', "。", "！", "?"]

words = st.sampled_from(_WORDS) | st.text("abcdefghij", min_size=1, max_size=9)
sentences = st.builds(
    lambda body, comma, mark: " ".join(["Then", *body[:3], "x" + comma, *body[3:]]) + mark,
    st.lists(words, min_size=1, max_size=25), st.sampled_from([",", ";", ""]), st.sampled_from(_MARKS),
)  # fmt: skip
paragraphs = st.lists(sentences, min_size=1, max_size=6).map(" ".join)
long_paragraphs = st.lists(sentences, min_size=3, max_size=8).map(
    lambda s: "A long one begins: it goes on. " * 4 + " ".join(s)
)
blocks = st.one_of(
    paragraphs,
    sentences,
    words.map(lambda w: f"# {w}"),
    st.lists(sentences, min_size=1, max_size=4).map(lambda s: "\n".join(f"- {x}" for x in s)),
    st.lists(words, min_size=1, max_size=9).map(lambda w: "```\n" + "\n".join(f"{x} = {x}(1)" for x in w) + "\n```"),
    st.lists(words, min_size=1, max_size=4).map(lambda w: "\n".join(f"| {x} | {x} |" for x in w)),
    st.just("你好。“他说：走吧。”她笑了！真的？然后，我们去了北京，看了很多东西，吃了很多东西。😀👍🏽"),
    st.just("<|im_start|>user\nhi there<|im_end|>"),
)
prompts = st.lists(blocks, min_size=1, max_size=6).map("\n\n".join)
