"""Sentences with a paraphrase, and with one fact changed; two different sentences of a list are unrelated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """One sentence in three versions.

    Attributes
    ----------
    paraphrase
        Says the same in other words.
    changed
        The sentence with one number, name, negation or date changed.
    """

    text: str
    paraphrase: str
    changed: str


ENGLISH = (
    Written("The lift in the east wing carries at most eight people at a time.",
            "No more than eight persons may ride the east wing's elevator together.",
            "The lift in the east wing carries at most nine people at a time."),
    Written("Parcels heavier than 20 kilograms have to be brought to the counter.",
            "Anything you send that weighs over 20 kilograms must be handed in at the desk.",
            "Parcels heavier than 12 kilograms have to be brought to the counter."),
    Written("The server retries a failed request three times before it gives up.",
            "After three unsuccessful attempts the server stops repeating a request.",
            "The server retries a failed request five times before it gives up."),
    Written("A bag of this flour makes about 14 loaves of bread.",
            "You can bake roughly 14 loaves from one sack of this flour.",
            "A bag of this flour makes about 40 loaves of bread."),
    Written("Membership costs 60 euros a year and can be paid in two parts.",
            "Members pay a yearly fee of 60 euros, in two instalments if they like.",
            "Membership costs 90 euros a year and can be paid in two parts."),
    Written("Doctor Almeida sees patients without an appointment on Thursday mornings.",
            "On Thursday mornings you can visit Doctor Almeida without booking first.",
            "Doctor Petrov sees patients without an appointment on Thursday mornings."),
    Written("The cello part was recorded by Ingrid Solberg in a church near the coast.",
            "In a seaside church Ingrid Solberg played the cello for the recording.",
            "The cello part was recorded by Yuki Tanabe in a church near the coast."),
    Written("All invoices are checked by the office in Rotterdam before they are paid.",
            "Before any bill is settled, the Rotterdam office goes through it.",
            "All invoices are checked by the office in Antwerp before they are paid."),
    Written("The plugin was written in Rust because the old one was too slow.",
            "Since its predecessor lacked speed, the new plugin was built with Rust.",
            "The plugin was written in Haskell because the old one was too slow."),
    Written("Fresh milk is delivered to the school by the Hansen farm every morning.",
            "Each morning the Hansen farm brings the school its milk.",
            "Fresh milk is delivered to the school by the Keller farm every morning."),
    Written("Photographs may be taken in the inner courtyard.",
            "Visitors are welcome to use their cameras in the inner yard.",
            "Photographs may not be taken in the inner courtyard."),
    Written("The insurance does not cover damage that is caused by frost.",
            "Harm done by freezing weather is excluded from the policy.",
            "The insurance does cover damage that is caused by frost."),
    Written("The new valve is compatible with pumps of the first series.",
            "Pumps from the first series can be fitted with the new valve.",
            "The new valve is incompatible with pumps of the first series."),
    Written("Employees are never allowed to open the cabinet on their own.",
            "Nobody on the staff has permission to open the cabinet alone.",
            "Employees are always allowed to open the cabinet on their own."),
    Written("The tenant has to inform the owner before painting the walls.",
            "Walls may be painted only after the landlord has been told.",
            "The tenant does not have to inform the owner before painting the walls."),
    Written("The harbour museum reopens on 9 May after a long renovation.",
            "Following extensive works, the museum at the harbour will open again on 9 May.",
            "The harbour museum reopens on 9 August after a long renovation."),
    Written("The treaty was signed in 1874 and ended a quarrel over fishing rights.",
            "A dispute about fishing was settled by the agreement of 1874.",
            "The treaty was signed in 1894 and ended a quarrel over fishing rights."),
    Written("Backups are written every Sunday night and kept for six weeks.",
            "Each Sunday at night a backup is made, which is stored for six weeks.",
            "Backups are written every Friday night and kept for six weeks."),
    Written("The comet can be seen again with the naked eye in the spring of 2061.",
            "In spring 2061 people will be able to spot the comet without a telescope.",
            "The comet can be seen again with the naked eye in the spring of 2081."),
    Written("Applications that arrive after 15 January are put on a waiting list.",
            "If you apply later than 15 January you will be placed on the waiting list.",
            "Applications that arrive after 15 November are put on a waiting list."),
)  # fmt: skip

CHINESE = (
    Written("这部电梯一次最多可以载八个人。", "一次乘坐这部电梯的人数不能超过八个。", "这部电梯一次最多可以载九个人。"),
    Written("超过20公斤的包裹必须送到柜台办理。", "如果包裹重量大于20公斤，请到窗口寄送。",
            "超过12公斤的包裹必须送到柜台办理。"),
    Written("服务器在请求失败后会重试三次。", "请求没有成功时，服务器还会再尝试三回。",
            "服务器在请求失败后会重试五次。"),
    Written("星期四上午可以不预约直接找何医生看病。", "何医生周四上午接待没有提前挂号的病人。",
            "星期四上午可以不预约直接找郑医生看病。"),
    Written("所有发票付款前都要经过苏州办事处审核。", "苏州的办公室会在付款之前检查每一张发票。",
            "所有发票付款前都要经过无锡办事处审核。"),
    Written("内院里可以拍照。", "游客能够在里面的院子使用相机。", "内院里不可以拍照。"),
    Written("霜冻造成的损失不在保险范围之内。", "保险公司不赔偿由冰冻引起的损害。",
            "霜冻造成的损失在保险范围之内。"),
    Written("港口博物馆将于五月九日重新开放。", "五月九日，位于港口的博物馆会再次迎接观众。",
            "港口博物馆将于八月九日重新开放。"),
    Written("条约签订于1874年，结束了渔业纠纷。", "1874年签下的协议解决了双方在捕鱼上的争端。",
            "条约签订于1894年，结束了渔业纠纷。"),
    Written("备份每个星期日晚上进行，保存六个星期。", "系统在周日夜里做备份，并且保留六周。",
            "备份每个星期五晚上进行，保存六个星期。"),
)  # fmt: skip

WRITTEN = {"en": ENGLISH, "zh": CHINESE}
