"""Paragraphs of prose to put facts into: the user's own, those of data sets, or what every machine has."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from evals._datasets import question_sets
from evals._prompts import read_prompts
from evals._stale_templates import LANGUAGES

_MIN_CHARS = {"en": 120, "zh": 40}
_CHINESE_SHARE = 0.3
_NOT_PROSE = re.compile(r"[|{}=_\\`*<>]|::|--|^\s*[-+#\d.]")
_ENDS = (".", "!", "?", "。", "！", "？")
_SHORT_LINE_CHARS = 40
_BREAKS = re.compile(r"\n\s*\n")

_CHINESE = """
清晨的河边很安静，几只白鹭站在浅水里。渔民把小船推下水，慢慢划向对岸。太阳升起以后，雾气渐渐散去，远处的山也看得清楚了。孩子们背着书包沿着河堤走向学校。

图书馆的阅览室朝南，冬天的阳光可以照到每一张桌子。读者把借来的书放在桌上，轻声翻页。管理员推着小车，把归还的书放回原来的书架。窗外的银杏树已经落光了叶子。

做豆腐先要把黄豆泡软，然后加水磨成豆浆。豆浆煮开以后，慢慢倒入卤水，轻轻搅动。等到豆花成形，再把它倒进铺好布的木框里压实。这样做出来的豆腐又嫩又香。

电脑的硬盘需要定期备份，否则一旦损坏，数据就很难恢复。备份应该放在另一台机器上，最好还放在另一栋楼里。恢复的步骤也要经常练习，这样真正出事的时候才不会手忙脚乱。

这座老城的街道很窄，两旁都是木头房子。屋檐下挂着红灯笼，傍晚的时候一盏一盏亮起来。游客在小店里喝茶，听老人讲从前的故事。雨后的石板路映着灯光，十分好看。

山上的茶园一层一层，像绿色的台阶。春天的时候，采茶的人天不亮就上山。新摘的茶叶要先摊开晾干，再放进锅里翻炒。炒好的茶叶装进罐子，可以保存很久。

火车穿过平原，窗外是一望无际的麦田。车厢里有人看书，有人聊天，也有人靠着窗户睡觉。列车员推着小车走过，卖热水和点心。到站的广播响了，大家开始收拾行李。

学习写字要先学会握笔和坐姿。老师让学生每天临摹字帖，不求写得快，只求写得稳。过了一段时间，笔画就会变得有力。写好的作品贴在教室的墙上，供大家欣赏。

森林里的蘑菇在雨后长得特别快。采蘑菇的人提着竹篮，仔细分辨哪些可以吃。有毒的蘑菇往往颜色鲜艳，但是也有例外。没有经验的人最好跟着熟悉山林的人一起去。

修理自行车并不难，只要有耐心。先把车子倒过来，检查轮胎有没有漏气。找到破口以后，用砂纸磨平，再贴上补片。最后给链条上油，转动踏板，听听有没有异常的声音。

剧团每年夏天到乡下演出。演员们搭起简单的舞台，村民自己带着凳子来看。戏里的故事大家都很熟悉，可是每次看到结尾还是会流泪。散场以后，孩子们学着演员的样子在台上翻跟头。

城市的供水来自上游的水库。水先经过沉淀和过滤，再经过消毒，才送到每家每户。工人定期检查管道，发现漏水就马上修理。天气干旱的时候，大家都要节约用水。
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """Paragraphs of prose by language, each once, and where they come from."""

    source: str
    paragraphs: Mapping[str, Sequence[str]]


def read_texts(args: argparse.Namespace) -> Texts:
    """Return the prose of ``--prompts``, of the question sets in ``--data``, or our own."""
    if args.prompts is not None:
        found = [document.text for question in read_prompts(args.prompts) for document in question.documents]
        return Texts("--prompts", _by_language(found))
    if args.data is not None:
        sets = question_sets(args.data)
        found = [document.text for each in sets for question in each.questions for document in question.documents]
        return Texts("; ".join(dict.fromkeys(each.source for each in sets)), _by_language(found))
    found = [_CHINESE, *(topics[name] for name in sorted(topics))]
    return Texts("pydoc_data.topics of the standard library; Chinese written here", _by_language(found))


def _by_language(texts: Sequence[str]) -> dict[str, list[str]]:
    parts = (part for text in texts for part in _BREAKS.split(text))
    found = dict.fromkeys(_joined(part) for part in parts if not _is_headed(part))
    return {language: [text for text in found if _is_prose(text, language)] for language in LANGUAGES}


def language_of(text: str) -> str:
    """Return ``zh`` for text with many Chinese characters, else ``en``."""
    chinese = sum("\u4e00" <= char <= "\u9fff" for char in text)
    return "zh" if chinese > _CHINESE_SHARE * len(text) else "en"


def _joined(paragraph: str) -> str:
    """Return a paragraph on one line; lines of Chinese are joined without spaces."""
    lines = [line.strip() for line in paragraph.strip().splitlines()]
    return ("" if language_of(paragraph) == "zh" else " ").join(lines)


def _is_headed(paragraph: str) -> bool:
    """Whether a heading or the term of a glossary stands on the first line."""
    first, _, rest = paragraph.strip().partition("\n")
    return bool(rest) and len(first) < _SHORT_LINE_CHARS and language_of(first) == "en"


def _is_prose(text: str, language: str) -> bool:
    if len(text) < _MIN_CHARS[language] or language_of(text) != language:
        return False
    return not _NOT_PROSE.search(text) and text.endswith(_ENDS)
