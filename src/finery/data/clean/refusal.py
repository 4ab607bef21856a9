"""Completions that refuse to answer, or speak of themselves as a language model."""

from __future__ import annotations

import re
from collections.abc import Callable

from finery.data.clean.backtracking import is_quick
from finery.data.clean.texts import spoken
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.errors import InputError
from finery.schemas.clean import RefusalStep

BEGINNING = 200
"""Characters of the completion that are looked at: what is said later is part of an answer."""


def _any(*choices: str) -> str:
    return f"(?:{'|'.join(choices)})"


_SORRY = (
    _any(
        "unfortunately", "regrettably", "sorry", "(?:i am|i'm) (?:(?:so|very|really|truly|terribly) )*(?:sorry|afraid)",
        "i (?:sincerely )?apologi[sz]e", "my (?:sincere )?apologies",
    )
    + r"(?: for (?:any|the) [a-z ]{1,30})?[,.:;!]*\s*(?:but|however|that)?,?\s*"
)  # fmt: skip
_CANNOT = (
    "i"
    + _any(
        " cannot", " can not", " can't", " could not", " won't", " will not", " (?:do not|don't) feel comfortable",
        "(?: am|'m) (?:currently )?(?:unable|not able) to", "(?: am|'m) not comfortable",
    )
    + "(?: (?:directly|currently|really|actually|ethically|in good conscience|be able to|to))*"
)  # fmt: skip
_MEDIUM = "(?:the |this |that |your )?(?:images?|links?|files?|videos?|audio|attachments?|photos?|pictures?)"
_SERVICE = (
    _any(
        "assist", "help (?:you|with that|with this)", "provide", "answer", "fulfill?", "complete (?:this|that|your)",
        "comply", "generate", f"create (?:content|this|that|such|any|{_MEDIUM})", "engage in", "discuss", "respond to",
        "support (?:this|that|such)", "browse", "access", "process", "promote",
        "offer (?:medical|legal|financial|advice)",
        "give (?:you )?(?:medical|legal|financial|advice|instructions)", "write (?:that|this|such|content)",
        "share (?:that|this|any|personal|information|instructions)", "do (?:that|this)", "proceed",
        "continue (?:with )?(?:this|that)", f"(?:view|see|open|watch|listen to|display|show) {_MEDIUM}",
        "providing", "assisting", "helping with that", "answering", "writing (?:that|this|such|content)",
    )
    + r"\b"
)  # fmt: skip
_MODEL = _any(
    "(?:large |ai )?language model",
    "(?:ai|artificial intelligence)(?: (?:language )?(?:model|assistant|chatbot|system|program))?",
)
_UNLIKE = _any("have (?:enough|the|access|any) (?:[a-z-]+ )?(?:information|context|ability|capability|data|to)",
               "(?:(?:fully|quite) )?understand (?:your|the) (?:question|request|input)")  # fmt: skip

ENGLISH = (
    f"(?:{_SORRY})?{_CANNOT} {_SERVICE}",
    f"{_SORRY}(?:as an? {_MODEL},? )?(?:i (?:cannot|can't|do not|don't)|i(?: am|'m) (?:unable|not able) to) {_UNLIKE}",
    f"{_SORRY}(?:this|that|your) (?:request|question|prompt)",
    f"as an? {_MODEL}(?: (?:trained|developed|created|made) by [^,.]{{1,40}})?,? "
    r"(?:i\b|i'm\b|my\b|it(?:'s| is) (?:not|beyond|im))",
    f"(?:i am|i'm) (?:just |only |merely |simply )?an? {_MODEL}"
    r"(?=[.,;!:]|\s*$|,? (?:and|so|but|which|that|who|created|trained|developed|designed|made|built)\b)",
    f"(?:{_SORRY})?i (?:do not|don't) have "
    + _any(
        "personal (?:opinions?|beliefs?|preferences?|experiences?|feelings|emotions)",
        "real[- ]time (?:access|data|information)", "the (?:ability|capability|capacity) to",
        "access to (?:real[- ]time|current|up-to-date|external|personal|the internet)",
    ),
    rf"(?:{_SORRY})?i (?:must|have to|need to) (?:respectfully |politely )?(?:decline|refuse)\b",
    "(?:this|that|your) (?:request|question|prompt) (?:may |might |would |appears to )?"
    "(?:violates?|go(?:es)? against|is against) (?:my|our|the|openai)",
    rf"(?:{_SORRY})?it (?:is|would be) (?:not |in|un)(?:appropriate|ethical)(?: or \w+)? for me to",
)  # fmt: skip
"""Matched at the very beginning, white space and markup aside, with straight apostrophes."""

_SORRY_ZH = "(?:抱歉|对不起|對不起|遗憾|遺憾|不好意思)"
_UNABLE_ZH = "(?:无法|無法|不能够?|不能夠|没有?办法|沒有?辦法|不便|没有能力|沒有能力|拒绝|拒絕)"
_SERVICE_ZH = "(?:直接|继续|繼續)?" + _any(
    "[为為帮幫向给給][您你]", "提供", "回答", "回复", "回覆", "协助", "協助", "满足", "滿足", "生成", "处理", "處理",
    "执行", "執行", "讨论", "討論", "访问", "訪問", "获取", "獲取", "查看", "打开", "打開", "播放", "帮助[您你]",
    "幫助[您你]", "理解[您你]", "(?:完成|支持|创作|創作|编写|編寫)(?:[这這此该該您你])",
)  # fmt: skip
_MODEL_ZH = _any(
    "(?:AI|人工智能|人工智慧)(?:大?[语語]言)?(?:模型|助手|助理|程序|系[统統]|机器人|機器人)",
    "(?:大型?|AI|人工智能)?[语語]言模型",
)
_ONE_ZH = "(?:一[个個名款位种種])?"
_NOW_ZH = "(?:目前|[暂暫]时|暫時|[现現]在)"

CHINESE = (
    rf"我?(?:很|非常|十分|深感|真的)?{_SORRY_ZH}[，,。!！:：、\s]*(?:但是?|不[过過])?[，,\s]*(?:作[为為][^，,。]{{1,20}}[，,])?"
    f"(?:我|我们|我們|恐怕|[还還]|[并並]|也|{_NOW_ZH})*{_UNABLE_ZH}{_SERVICE_ZH}",
    rf"我?(?:很|非常|十分)?{_SORRY_ZH}[，,。!！:：、\s]*我?(?:不明白|不理解|[没沒]有?理解|不太明白|不太理解)[您你]",
    rf"作[为為]{_ONE_ZH}(?:{_MODEL_ZH}|AI|人工智能|人工智慧)[，,]?\s*[我本]",
    f"我(?:只|[仅僅]+)?是{_ONE_ZH}{_MODEL_ZH}",
    f"我是由[^，,。]{{1,20}}(?:训练|訓練|开发|開發|创建|創建|研发|研發)的[^，,。]{{0,8}}(?:{_MODEL_ZH}|AI|人工智能)",
    f"我{_NOW_ZH}?{_UNABLE_ZH}(?:[为為][您你]|提供|回答|满足|滿足|协助|協助|生成|访问|訪問)",
)
"""The same, in simplified and traditional characters."""

_LEAD = re.compile(r"[\s\"'“”‘’「『*_>#-]+")


Search = Callable[[str, str], str | None]
"""(pattern, text) -> the first match without regard to case; raises InputError when it takes too long."""


class Refusal:
    """Drops a row whose completion, or one turn of the assistant's, begins with a refusal.

    Args:
        name: the step's.
        config: its config.
        search: looks for those of the user's patterns that may backtrack for ever; others are looked for here.
    """

    def __init__(self, name: str, config: RefusalStep, search: Search | None = None) -> None:
        self.name = name
        shipped = [*ENGLISH, *CHINESE] if config.shipped else []
        self._shipped = re.compile("|".join(f"(?:{one})" for one in shipped), re.IGNORECASE) if shipped else None
        self._own = [self._searcher(one, search) for one in config.patterns]

    def __call__(self, row: Row) -> Row:
        for field, _, text in spoken(row):
            beginning = text[:BEGINNING]
            if (found := self._found(beginning)) is not None:
                raise Reject(field, self.name, f"begins like a refusal: {found!r}")
        return row

    def _found(self, text: str) -> str | None:
        if self._shipped is not None:
            lead = _LEAD.match(text)
            match = self._shipped.match(text.replace("’", "'"), lead.end() if lead else 0)
            if match:
                return match.group()
        for search in self._own:
            if (found := search(text)) is not None:
                return found
        return None

    def _searcher(self, pattern: str, search: Search | None) -> Callable[[str], str | None]:
        compiled = re.compile(pattern, re.IGNORECASE)

        def here(text: str) -> str | None:
            match = compiled.search(text)
            return (match.group() or pattern) if match else None

        if is_quick(pattern, BEGINNING):
            return here
        if search is None:
            raise InputError(f"{self.name}: {pattern!r} may take for ever, and nothing is there to stop it")

        def guarded(text: str) -> str | None:
            found = search(pattern, text)
            return found if found is None else found or pattern

        return guarded
