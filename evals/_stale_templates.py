"""Sentences that state one fact, with the question that asks for it, in English and Chinese.

``{}`` stands for the value. It begins some facts and ends others: where it comes first, the words that the question
takes up again follow it, and their K/V have attended to it.

A template of the kind ``after_edit`` has a second sentence, the same in both versions of the document, that says
what the fact implies, or that speaks of its subject again. It stands somewhere after the fact, so that its chunk is
reused although it has attended to the old value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("number", "name", "negation", "date", "after_edit")
LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Values:
    """What may stand in a template: two different ones are drawn for the old and the new version.

    Attributes
    ----------
    choices
        The values as they are written in the fact.
    answers
        For a choice, further wordings of an answer that give it ("yes" for "allowed").
    """

    choices: tuple[str, ...]
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def forms(self, choice: str) -> tuple[str, ...]:
        """Return every wording that counts as ``choice``."""
        return (choice, *self.answers.get(choice, ()))

    def changes(self, choice: str) -> list[list[str]]:
        """Return what ``choice`` may change to, by the kind of change; none is empty.

        To a longer or shorter value that ends alike ("New York", "York"), to a number with another last digit, to
        anything else. In the first two many tokens stay the same, so that reuse has much to get wrong.
        """
        rest = [value for value in self.choices if value != choice]
        longer = [value for value in rest if value.endswith(choice) or choice.endswith(value)]
        digit = [v for v in rest if choice.isdigit() and len(v) == len(choice) and v[:-1] == choice[:-1]]
        other = [value for value in rest if value not in longer and value not in digit]
        return [group for group in (longer, digit, other) if group]


@dataclass(frozen=True, slots=True)
class Template:
    """One fact.

    Attributes
    ----------
    fact, later
        The sentence with the value, and for ``after_edit`` the one that depends on it.
    question
        Asks for the value.
    prefix
        Begins an answer whose next words are the value, without the space before it.
    """

    kind: str
    fact: str
    question: str
    prefix: str
    values: Values
    later: str = ""


def _yes_no(yes: str, no: str) -> Values:
    return Values((yes, no), {yes: ("yes",), no: ("no", f"aren't {yes}", f"isn't {yes}")})


def _dates() -> Values:
    days = {f"{day} {month}": (f"{month} {day}",) for month in _MONTHS for day in (3, 4, 6, 8, 13, 14, 16, 18, 23, 24)}
    return Values(tuple(days), days)


_MONTHS = ("January", "February", "April", "June", "July", "September", "October", "November")
NUMBERS = Values(tuple(str(n) for n in range(12, 900) if n % 10 and n % 100 > 10))
YEARS = Values(tuple(str(n) for n in range(1921, 1999)))
PEOPLE = Values(
    (
        *("Helen Brandt", "Maria Helen Brandt", "Victor Osei", "Daniel Victor Osei", "Ruth Kimani", "Anna Ruth Kimani"),
        *("Tomas Ferreira", "Marta Lindqvist", "Irene Walsh"),
    )
)
PLACES = Values(
    (
        *("York", "New York", "Mexico", "New Mexico", "Korea", "South Korea", "Virginia", "West Virginia"),
        *("Ireland", "Northern Ireland", "Lisbon", "Nairobi", "Oslo", "Warsaw"),
    )
)
DATES = _dates()

ENGLISH = (
    Template("number", "The maximum upload size is {} MB.", "What is the maximum upload size in MB?",
             "The maximum upload size is", NUMBERS),
    Template("number", "After {} minutes the server ends an idle session.",
             "After how many minutes does the server end an idle session?",
             "The server ends an idle session after", NUMBERS),
    Template("number", "The archive room holds {} boxes of letters.",
             "How many boxes of letters does the archive room hold?", "The archive room holds", NUMBERS),
    Template("number", "For {} euros visitors can buy a day ticket to the museum.",
             "How many euros does a day ticket to the museum cost?", "A day ticket to the museum costs", NUMBERS),
    Template("number", "A length of {} metres makes the old stone bridge the longest in the valley.",
             "How many metres long is the old stone bridge?", "The length of the old stone bridge is", NUMBERS),
    Template("name", "{} is the contact person for this project.", "Who is the contact person for this project?",
             "The contact person for this project is", PEOPLE),
    Template("name", "The text was translated by {}.", "Who translated the text?",
             "The text was translated by", PEOPLE),
    Template("name", "{} is where the company has its head office.",
             "Where does the company have its head office?", "The company has its head office in", PLACES),
    Template("name", "All spare parts are shipped from {}.", "From where are all spare parts shipped?",
             "All spare parts are shipped from", PLACES),
    Template("negation", "Guest accounts are {} on this system.", "Are guest accounts allowed on this system?",
             "Guest accounts are", _yes_no("allowed", "not allowed")),
    Template("negation", "The north entrance is {} on Sundays.", "Is the north entrance open on Sundays?",
             "The north entrance is", _yes_no("open", "not open")),
    Template("negation", "Visitors are {} to bring dogs into the reading room.",
             "Are visitors permitted to bring dogs into the reading room?",
             "Visitors are", _yes_no("permitted", "not permitted")),
    Template("negation", "Water damage of any kind is {} by the warranty.", "Is water damage covered by the warranty?",
             "Water damage of any kind is", _yes_no("covered", "not covered")),
    Template("date", "On {} the next audit of all offices takes place.",
             "On which date does the next audit of all offices take place?",
             "The next audit of all offices takes place on", DATES),
    Template("date", "The garden closes for the winter on {}.",
             "On which date does the garden close for the winter?", "The garden closes for the winter on", DATES),
    Template("date", "In {} the workshop was founded by two brothers.",
             "In which year was the workshop founded by two brothers?", "The workshop was founded in", YEARS),
    Template("date", "The town library was built in {}.", "In which year was the town library built?",
             "The town library was built in", YEARS),
    Template("after_edit", "The maximum upload size is {} MB.", "Above how many MB is an upload refused?",
             "An upload is refused above", NUMBERS, "Any upload above this size is refused by the server."),
    Template("after_edit", "{} is the contact person for this project.", "Who is the contact person for this project?",
             "The contact person for this project is", PEOPLE,
             "The contact person for this project can also be reached by telephone."),
    Template("after_edit", "The head office of the company is in {}.", "Where is the yearly meeting held?",
             "The yearly meeting is held in", PLACES, "The yearly meeting is held in the same place."),
    Template("after_edit", "In {} the workshop was founded by two brothers.",
             "In which year was the workshop founded?", "The workshop was founded in", YEARS,
             "The year in which the workshop was founded is carved above its door."),
    Template("after_edit", "A day ticket for the museum costs {} euros.", "How many euros does the guided tour cost?",
             "The guided tour costs", NUMBERS, "The guided tour costs exactly as much as this ticket."),
)  # fmt: skip


def _yes_no_zh(yes: str, no: str) -> Values:
    return Values((yes, no), {yes: ("是的",), no: ("不是", "没有")})


PEOPLE_ZH = Values(("王芳", "李建国", "陈晓东", "刘志强", "赵敏", "孙丽华", "周文斌"))
PLACES_ZH = Values(("王庄", "大王庄", "李村", "北李村", "河湾", "上河湾", "石桥镇", "南石桥镇", "杭州", "成都", "昆明"))
DATES_ZH = Values(tuple(f"{month}月{day}日" for month in (1, 2, 11, 12) for day in (3, 13, 6, 16)))

CHINESE = (
    Template("number", "上传文件的最大容量为{}兆。", "上传文件的最大容量是多少兆？",
             "上传文件的最大容量为", NUMBERS),
    Template("number", "闲置{}分钟后，服务器会结束会话。", "闲置多少分钟后服务器会结束会话？",
             "服务器结束会话的闲置时间为", NUMBERS),
    Template("number", "档案室共有{}箱信件。", "档案室共有多少箱信件？", "档案室共有", NUMBERS),
    Template("number", "长达{}米的石桥是全县最长的桥。", "石桥长多少米？", "石桥长达", NUMBERS),
    Template("name", "{}是本项目的联系人。", "本项目的联系人是谁？", "本项目的联系人是", PEOPLE_ZH),
    Template("name", "这篇文章的译者是{}。", "这篇文章的译者是谁？", "这篇文章的译者是", PEOPLE_ZH),
    Template("name", "{}是公司总部所在的地方。", "公司总部所在的地方是哪里？", "公司总部所在的地方是", PLACES_ZH),
    Template("name", "所有备用零件都从{}发货。", "所有备用零件都从哪里发货？", "所有备用零件都从", PLACES_ZH),
    Template("negation", "访客账号在本系统中{}使用。", "关于访客账号有什么规定？", "访客账号在本系统中",
             _yes_no_zh("允许", "不允许")),
    Template("negation", "北门在星期日{}进出。", "关于北门有什么规定？", "北门在星期日",
             _yes_no_zh("可以", "不可以")),
    Template("negation", "进水造成的损坏{}保修范围。", "关于进水造成的损坏有什么规定？", "进水造成的损坏",
             _yes_no_zh("属于", "不属于")),
    Template("date", "{}将进行下一次审计。", "下一次审计将在哪一天进行？", "下一次审计的日期是", DATES_ZH),
    Template("date", "花园将于{}关闭。", "花园将于哪一天关闭？", "花园将于", DATES_ZH),
    Template("date", "{}年，两兄弟创办了这家工厂。", "这家工厂创办于哪一年？", "这家工厂创办于", YEARS),
    Template("date", "市图书馆建于{}年。", "市图书馆建于哪一年？", "市图书馆建于", YEARS),
    Template("after_edit", "上传文件的最大容量为{}兆。", "超过多少兆的文件会被拒绝？", "会被拒绝的文件超过", NUMBERS,
             "超过这一容量的文件会被服务器拒绝。"),
    Template("after_edit", "{}是本项目的联系人。", "本项目的联系人是谁？", "本项目的联系人是", PEOPLE_ZH,
             "本项目的联系人也接听电话。"),
    Template("after_edit", "公司的总部设在{}。", "年会在哪里举行？", "年会的举办地点是", PLACES_ZH,
             "年会也在总部所在的地方举行。"),
    Template("after_edit", "{}年，两兄弟创办了这家工厂。", "这家工厂创办于哪一年？", "这家工厂创办于", YEARS,
             "这家工厂创办的年份刻在大门上方。"),
)  # fmt: skip

TEMPLATES = {"en": ENGLISH, "zh": CHINESE}
