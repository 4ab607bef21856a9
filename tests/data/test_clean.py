from __future__ import annotations

import json
import re
import unicodedata
from itertools import pairwise
from typing import Any

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from finery.data.clean import CleanStep, steps
from finery.data.clean.characters import _config
from finery.data.clean.repetition import line_share, ngram_share
from finery.data.clean.script import _RANGES, script_of
from finery.data.clean.words import plain, words
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.errors import InputError
from finery.schemas.clean import Step
from finery.schemas.data import DataStage

STEP: TypeAdapter[Any] = TypeAdapter(Step)


def step(kind: str, tokens: Any = None, **more: Any) -> CleanStep:
    return steps([STEP.validate_python({"kind": kind, **more})], tokens)[0]


def text(made: CleanStep, value: str) -> str:
    """What a step makes of a message's content."""
    return made({"messages": [{"role": "user", "content": value}]})["messages"][0]["content"]


def says(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(turns)
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]


def pair(prompt: str, completion: str) -> Row:
    return {"prompt": says(prompt), "completion": [{"role": "assistant", "content": completion}]}


RIGHT = {
    "code": "def f(x):\n\tif x:\n\t\treturn 'a\\tb'\n    # done\n\treturn None",
    "latex": r"The roots are $x = \frac{-b \pm \sqrt{b^2-4ac}}{2a}$ where $a \ne 0$.",
    "html": "Write &lt;b&gt; or &amp;nbsp; to show <b>, and &eacute; for an e.",
    "chinese": "今天天气很好，我们一起去公园散步吧。“你好！”她说——真的吗？１２３",
    "japanese": "ﾊﾝｶｸ カタカナと、ひらがな。「こんにちは」",
    "emoji": "A family 👨‍👩‍👧‍👦, a flag 🏴󠁧󠁢󠁷󠁬󠁳󠁿, a heart ❤️, a dev 👩🏽‍💻.",
    "persian": "می‌خواهم کتاب‌ها را بخوانم.",
    "arabic": "السَّلَامُ عَلَيْكُمْ",
    "hindi": "नमस्ते, आप कैसे हैं? क्‍या",
    "french": "Les élèves étaient « très » contents d’être à l’école ; Œuvre, cœur, ÀÉÊ — voilà… 10 €",
    "german": "Über große Größen: „Straße“ – ja, 5 £ für ½ l",
    "portuguese": "AMANHÃ À NOITE, NÃO? Irmã, avó e avô: coração.",
    "vietnamese": "Tiếng Việt có dấu: Ấ, ờ, ữ; Đà Nẵng là thành phố",
    "polish": "Zażółć gęślą jaźń; ŁÓDŹ",
    "russian": "Привет, как дела? «Хорошо» — сказал он.",
    "windows": "C:\\Users\\new\\table.txt and \\\\server\\share\\x",
    "quotes": "“curly” ‘quotes’ and ﬁne ligatures",
    "maths": "x² + y² ≤ 10³ · π ≈ 3.14 × 2 ÷ 1 ± ∞ ∑ √2 ≠ ½",
    "table": "│ a │ b │\n├───┼───┤\n│ 1 │ 2 │",
    "markdown": "# Title\n\n- one\n- two\n\n```py\nx = 1\n```",
}


# the row


def test_steps_are_named_by_their_kinds_and_counted() -> None:
    made = steps([STEP.validate_python({"kind": kind}) for kind in ("unicode", "whitespace", "unicode", "unicode")])
    assert [one.name for one in made] == ["unicode", "whitespace", "unicode_2", "unicode_3"]


@pytest.mark.parametrize("kind", ["unicode", "characters", "whitespace", "repetition", "refusal"])
def test_a_row_that_needs_nothing_is_the_same_object(kind: str) -> None:
    row = {**pair("Hello, who are you?", "I am well.\n\n\tIndented."), "answer": "well", "meta": {"a": "\u3000 \r\n"}}
    assert step(kind)(row) is row


def test_every_text_is_mended_and_nothing_else() -> None:
    row: Row = {
        "id": "i",
        "prompt": says("a\r\nb", "c\r\nd", "e\r\n"),
        "completion": [{"role": "assistant", "content": "f\r"}],
        "answer": "g\r\n",
        "tests": "h\r\n",
        "sql": {"gold": "i\r\n"},
        "meta": {"j": "k\r\n"},
    }
    before = json.dumps(row)
    mended = step("whitespace")(row)
    assert [turn["content"] for turn in mended["prompt"]] == ["a\nb", "c\nd", "e"]
    assert (mended["completion"], mended["answer"]) == ([{"role": "assistant", "content": "f"}], "g")
    assert {key: mended[key] for key in ("id", "tests", "sql", "meta")} == {
        "id": "i",
        "tests": "h\r\n",
        "sql": {"gold": "i\r\n"},
        "meta": {"j": "k\r\n"},
    }
    assert json.dumps(row) == before


@pytest.mark.parametrize(
    ("kind", "row", "field"),
    [
        ("whitespace", {"prompt": "p", "completion": "\u200b \n"}, "completion"),
        ("characters", {"prompt": "\x00\x07", "completion": "c"}, "prompt"),
        ("whitespace", {"messages": says("q", "\ufeff")}, "messages[1].content"),
        ("whitespace", {"prompt": "p", "answer": "\u2003"}, "answer"),
        ("unicode", {"prompt": "p", "answer": "\u3000"}, "answer"),
    ],
)
def test_a_text_that_becomes_empty_rejects_the_row(kind: str, row: Row, field: str) -> None:
    made = step(kind, fold_width=True) if kind == "unicode" else step(kind)
    with pytest.raises(Reject) as caught:
        made(row)
    assert (caught.value.field, caught.value.code, caught.value.reason) == (field, kind, f"is empty after {kind}")


# unicode


def test_fold_width_folds_the_full_width_forms_and_nothing_else() -> None:
    made = step("unicode", fold_width=True)
    mend = made._mend  # type: ignore[attr-defined]
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        if 0xFF01 <= code <= 0xFF5E:
            due = chr(code - 0xFEE0)
            assert due == unicodedata.normalize("NFKC", chr(code))
        else:
            due = " " if code == 0x3000 else unicodedata.normalize("NFC", chr(code))
        assert mend(chr(code), "") == due
    assert text(made, "ＡＢＣ　１２３，（ｘ）＝￥５ ｶﾞ x²") == "ABC 123,(x)=￥5 ｶﾞ x²"


def test_forms_are_those_of_unicode() -> None:
    assert text(step("unicode"), "cafe\u0301 x² ﬁ Ａ") == "café x² ﬁ Ａ"
    assert text(step("unicode", form="NFKC"), "cafe\u0301 x² ﬁ Ａ") == "café x2 fi A"
    # a folded letter takes its accent
    assert text(step("unicode", fold_width=True), "Ｅ\u0301") == "É"


# characters


@pytest.mark.parametrize("name", RIGHT)
def test_right_text_is_left_alone(name: str) -> None:
    row = pair(RIGHT[name], RIGHT[name])
    assert step("characters")(row) is row


@pytest.mark.parametrize(
    ("damaged", "mended"),
    [
        ("cafÃ© â€” itâ€™s", "café — it’s"),
        ("ä½\xa0å¥½ï¼Œä¸–ç•Œ", "你好，世界"),
        ("ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Привет"),
        ("a line\nvoilÃ\xa0 l’été\nanother", "a line\nvoilà l’été\nanother"),
        ("\x1b[31mred\x1b[0m text\x00\x08", "red text"),
        ("a\ufeffb\ufffcc\u206ad", "abcd"),
        ("\ud83d\ude00 joined", "😀 joined"),
        ("it\x92s", "it’s"),
        ("tab\there\x0cpage\nline\r\nend", "tab\there\x0cpage\nline\r\nend"),
    ],
)
def test_damage_is_mended(damaged: str, mended: str) -> None:
    assert text(step("characters"), damaged) == mended


def test_encoding_is_left_alone_when_asked() -> None:
    made = step("characters", fix_encoding=False)
    assert text(made, "cafÃ©\x00") == "cafÃ©"
    assert text(made, "a\x92b\x85c") == "ab\x85c"  # C1 controls are controls; U+0085 is a newline


def test_replacement_characters() -> None:
    row = pair("what is this?", "some te\ufffdt")
    with pytest.raises(Reject, match="holds U\\+FFFD") as caught:
        step("characters")(row)
    assert (caught.value.field, caught.value.code) == ("completion[0].content", "characters")
    assert step("characters", replacement="keep")(row) is row
    assert step("characters", replacement="remove")(row) == pair("what is this?", "some tet")
    with pytest.raises(Reject, match="holds U\\+FFFD"):
        step("characters")({"prompt": "half of a pair: \ud83d", "answer": "1"})
    with pytest.raises(Reject, match="is empty after characters"):
        step("characters", replacement="remove")({"prompt": "\ufffd"})


SUSPECTS = st.text(
    st.one_of(
        st.sampled_from("ÃÂâ€™œŒ¢£¥©®°±²³µ¶·¼½¾¿ÐÑØÙßàéĀā√∫≈‚Äɐ–—“”‘’…•\xa0\x81\x85\x92abz .,\nＡ好ВГвЂ"),
        st.characters(codec="utf-8"),
    ),
    max_size=12,
)


@settings(max_examples=400, deadline=None)
@given(SUSPECTS)
def test_the_fast_path_passes_over_nothing_that_ftfy_would_mend(value: str) -> None:
    made = step("characters", replacement="keep")
    whole = ftfy.fix_text(value, _config(True))
    mended = made._mend(value, "")  # type: ignore[attr-defined]
    if whole != value:
        assert mended != value
    elif not re.search("[\x80-\x84\x86-\x9f]", value):
        assert mended == value


# white space


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ("a\r\nb\rc\u2028d\u2029e\x85f", "a\nb\nc\nd\ne\nf"),
        ("a\xa0b\u2003c\u3000d\u202fe", "a b c d e"),
        ("a\u200bb\ufeffc\u2060d", "abcd"),
        ("\n\n  def f():  \n\t\treturn 1 \t\n\n\n", "  def f():\n\t\treturn 1"),
        (" \n a  b \n\n\n\n c", " a  b\n\n\n\n c"),
        ("👨‍👩‍👧 می‌خواهم", "👨‍👩‍👧 می‌خواهم"),
        ("\r\u200b\nx", "x"),
    ],
)
def test_white_space_is_unified(given: str, due: str) -> None:
    assert text(step("whitespace"), given) == due


def test_white_space_collapses_when_asked() -> None:
    assert text(step("whitespace", collapse=True), "a  b \t c\n\n\n\nd\te\n \n \nf") == "a b c\n\nd\te\n\nf"


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [("Q:17+8-3\n", "A:22"), ("17+8-3 ", "22"), ("def f(x):\n", "    return x"), ("Q: 1+1", "\nA: 2"), ("a:", " b")],
)
def test_where_a_text_prompt_meets_its_completion_nothing_goes(prompt: str, completion: str) -> None:
    row = {"prompt": prompt, "completion": completion}
    assert step("whitespace")(row) is row
    more = {"prompt": f"\n\nx \r\n{prompt}", "completion": f"{completion}\u200b \n\n"}
    assert step("whitespace")(more) == {"prompt": f"x\n{prompt}", "completion": completion}


@pytest.mark.parametrize("name", RIGHT)
def test_right_text_keeps_its_words(name: str) -> None:
    assert text(step("whitespace"), RIGHT[name]) == RIGHT[name]


# length


class Letters:
    """Counts a token for each character, and two for each message."""

    def count(self, row: Any) -> int:
        self.asked = getattr(self, "asked", 0) + 1
        turns = [*row.get("messages", []), *(row["prompt"] if isinstance(row.get("prompt"), list) else [])]
        turns += row["completion"] if isinstance(row.get("completion"), list) else []
        flat = [row[name] for name in ("prompt", "completion") if isinstance(row.get(name), str)]
        return sum(2 + len(turn["content"]) for turn in turns) + sum(map(len, flat))

    def count_many(self, rows: Any) -> list[int]:
        return [self.count(row) for row in rows]


def contents(row: Row) -> list[str]:
    return [turn["content"] for turn in row.get("messages", row.get("prompt"))]


LONG = says("aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff", system="ss")


@pytest.mark.parametrize(
    ("limit", "due"),
    [
        (40, ["ss", "aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff"]),
        (39, ["ss", "cccc", "dddd", "eeee", "ffff"]),
        (28, ["ss", "cccc", "dddd", "eeee", "ffff"]),
        (27, ["ss", "eeee", "ffff"]),
        (16, ["ss", "eeee", "ffff"]),
        (15, None),
    ],
)
def test_the_oldest_exchanges_go_first(limit: int, due: list[str] | None) -> None:
    """Messages have 2 tokens and one for each letter: 4, then 6 each."""
    made = step("length", Letters(), max_tokens=limit)
    if due is None:
        with pytest.raises(Reject, match="has 16 tokens; max_tokens is 15 without its older turns"):
            made({"messages": LONG})
    else:
        assert contents(made({"messages": LONG})) == due


def test_a_prompt_of_messages_loses_exchanges_and_the_completion_stays_whole() -> None:
    row = {"prompt": LONG[:-1], "completion": [{"role": "assistant", "content": "f" * 10}], "meta": {"a": 1}}
    cut = step("length", max_characters=25)(row)
    assert contents(cut) == ["ss", "cccc", "dddd", "eeee"]
    assert (cut["completion"], cut["meta"]) == (row["completion"], row["meta"])
    assert contents(step("length", max_characters=16)(row)) == ["ss", "eeee"]
    with pytest.raises(Reject, match="has 16 characters; max_characters is 15") as caught:
        step("length", max_characters=15)(row)
    assert caught.value.code == "length"


def test_what_follows_the_last_user_turn_stays_together() -> None:
    turns = [
        *says("old", "older"),
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    assert contents(step("length", max_characters=29)({"messages": turns})) == [
        "weather?",
        "call",
        "sunny",
        "It is sunny.",
    ]
    with pytest.raises(Reject):
        step("length", max_characters=28)({"messages": turns})


def test_a_text_prompt_is_never_cut() -> None:
    with pytest.raises(Reject, match=r"has 11 characters; max_characters is 10$"):
        step("length", max_characters=10)({"prompt": "12345678", "completion": "123"})


def test_a_long_conversation_is_cut_in_few_counts() -> None:
    tokens = Letters()
    turns = says(*("x" * 8 for _ in range(400)))
    cut = step("length", tokens, max_tokens=505)({"messages": turns})
    assert len(cut["messages"]) == 50 and tokens.asked <= 11


def test_limits_from_below() -> None:
    assert step("length", min_characters=3)(pair("a", "bcd"))
    with pytest.raises(Reject, match="its completion has 2 characters; min_characters is 3"):
        step("length", min_characters=3)(pair("a long prompt", "bc"))
    with pytest.raises(Reject, match="has 6 tokens; min_tokens is 7"):
        step("length", Letters(), min_tokens=7)(pair("a", "b"))
    assert step("length", min_characters=3)({"prompt": "a", "answer": "1"})
    # earlier replies within a prompt are not its completion
    with pytest.raises(Reject):
        step("length", min_characters=3)({"prompt": says("a", "bcdef", "g"), "completion": "hi"})


def test_a_limit_in_tokens_needs_a_tokenizer() -> None:
    with pytest.raises(InputError, match="tokenizer"):
        step("length", max_tokens=5)
    with pytest.raises(ValidationError, match="needs a limit"):
        step("length")


# repetition


def test_line_share_by_hand() -> None:
    assert line_share("a\nb\na\n\n\na\nc") == 2 / 5
    assert line_share("a\n a \nb") == 1 / 3
    assert line_share("a\nb\n\n\n") == 0
    assert line_share("") == 0


def test_ngram_share_by_hand() -> None:
    # "aa b" stands at words 0 and 3: 2 * 3 of 3 + 2 + 3 characters
    assert ngram_share("aa b cc aa b", 2) == 6 / 8
    # overlapping: "x x" at 0, 1 and 2 covers four words once each
    assert ngram_share("x x x x", 2) == 1
    assert ngram_share("one two three four", 2) == 0
    assert ngram_share("a b", 3) == 0
    # characters are words in Chinese: 你好 twice, of six
    assert ngram_share("你好吗你好呀", 2) == 4 / 6
    assert ngram_share("The cat. THE CAT!", 2) == 1


def test_rows_that_repeat_themselves_are_dropped() -> None:
    made = step("repetition")
    with pytest.raises(Reject, match=r"40% of its lines are duplicates; line_share is 0\.3") as caught:
        made(pair("q", "a\nb\na\n\na\nc"))
    assert (caught.value.field, caught.value.code) == ("completion[0].content", "repetition")
    assert step("repetition", line_share=0.4)(pair("q", "a\nb\na\n\na\nc"))
    loop = "I will now say the same long sentence all over again, dear. " * 5
    with pytest.raises(Reject, match="100% of its characters stand in repeated 10-grams"):
        made(pair("q", loop))
    with pytest.raises(Reject, match="repeated 10-grams"):
        made({"prompt": "q", "completion": "我们今天去公园散步看花吃饭" * 4})
    # only what is learned from counts, each turn by itself
    assert made({"prompt": says("q", loop, "again"), "completion": [{"role": "assistant", "content": "no"}]})
    answer = "A sentence of a good many words, of which none is there twice in one go."
    assert made({"messages": says("q", answer, "say that again", answer)})
    code = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n"
    assert made(pair("q", code))


# refusals

REFUSALS = [
    "I'm sorry, but I can't assist with that request.",
    "I’m sorry, but I cannot provide instructions for that.",
    "I am really sorry, but I am unable to help you with this.",
    "Sorry, I can't help with that.",
    "I apologize, but I cannot fulfill this request as it goes against my programming.",
    "I apologize for any confusion, but I'm not able to browse the internet.",
    "As an AI language model, I don't have personal opinions.",
    "As an AI, I cannot feel emotions.",
    "As a large language model trained by OpenAI, I am not able to predict the future.",
    "As an artificial intelligence, it is not possible for me to taste food.",
    "I'm just an AI assistant, so I can't watch videos.",
    "I am an AI language model and do not have a name.",
    "Unfortunately, I cannot access real-time data.",
    "I cannot generate content that is harmful.",
    "I don't have personal experiences, but many people like it.",
    "I must respectfully decline.",
    "I'm sorry, but I don't have enough information to answer.",
    "It is not appropriate for me to discuss this.",
    "This request violates our usage policies.",
    "**I'm sorry, but I can't comply with that.**",
    "抱歉，我无法为您提供这方面的帮助。",
    "很抱歉，我不能回答这个问题。",
    "对不起，作为一个AI语言模型，我无法访问互联网。",
    "作为一个人工智能语言模型，我没有个人观点。",
    "作为AI助手，我不会有情绪。",
    "我是一个AI语言模型，没有感情。",
    "我是由某公司训练的大型语言模型。",
    "我无法提供医疗建议。",
    "很抱歉，我不太理解您的问题。",
    "抱歉，我無法為您提供協助。",
    "非常抱歉，但是我目前没有办法播放音乐。",
]
ANSWERS = [
    "I'm sorry to hear that you feel unwell. Rest, and drink a lot of water.",
    "I am sorry for your loss. Losing a friend is hard.",
    "Sorry, I can't make it to your party tonight. Have fun!",
    "Dear Sir, I am writing to apologize for the delay.",
    "I can't stress enough how much practice matters.",
    "I cannot help but admire the view.",
    "I am an AI researcher who writes about language models.",
    "I'm an AI engineer.",
    "As an AI researcher, I work on language models.",
    "As an AI model is trained, its loss falls.",
    "As an AI model, GPT-4 is large.",
    "An AI language model predicts the next word.",
    "The chatbot answered: I'm sorry, but I can't assist with that.",
    "Yes. " + "It works like this. " * 12 + "I'm sorry, but I can't assist with the last part.",
    "I don't have to tell you that 2 + 2 = 4.",
    "I do not like green eggs and ham.",
    "Unfortunately, the train was late.",
    "This request is an HTTP GET.",
    "抱歉让你久等了！下面是答案：42。",
    "很遗憾听到这个消息，希望你早日康复。",
    "作为人工智能领域的专家，王教授发表了许多论文。",
    "作为一种语言模型，BERT 使用双向编码。",
    "我是人工智能专业的学生。",
    "抱歉信的写法：首先说明原因。",
    "这道题的答案是 5。我无法提供更多细节的说明见下文。",
    "我不能参加今晚的聚会，因为要加班。",
]


@pytest.mark.parametrize("said", REFUSALS)
def test_refusals_are_dropped(said: str) -> None:
    with pytest.raises(Reject, match="begins like a refusal") as caught:
        step("refusal")(pair("q", said))
    assert (caught.value.field, caught.value.code) == ("completion[0].content", "refusal")


@pytest.mark.parametrize("said", ANSWERS)
def test_answers_are_not_taken_for_refusals(said: str) -> None:
    row = pair("I'm sorry, but I can't assist with that request.", said)
    assert step("refusal")(row) is row


def test_patterns_of_the_users_own() -> None:
    made = step("refusal", patterns=["no (comment|idea)"], shipped=False)
    assert made(pair("q", REFUSALS[0]))
    with pytest.raises(Reject, match="'No Idea'"):
        made(pair("q", "Honestly? No Idea."))
    assert made(pair("q", "x" * 200 + "no idea"))
    with pytest.raises(ValidationError, match="nothing to look for"):
        step("refusal", shipped=False)
    with pytest.raises(ValidationError, match="no regular expression"):
        step("refusal", patterns=["a", "("])


def test_any_turn_of_the_assistants_may_refuse() -> None:
    with pytest.raises(Reject) as caught:
        step("refusal")({"messages": says("a", "b", "c", REFUSALS[0])})
    assert caught.value.field == "messages[3].content"


# scripts


def test_the_table_of_scripts_agrees_with_the_names_of_characters() -> None:
    """Unicode names letters after their scripts; those named otherwise are listed here."""
    of = {
        "CJK": "han",
        "IDEOGRAPHIC": "han",
        "HIRAGANA": "kana",
        "KATAKANA": "kana",
        "KATAKANA-HIRAGANA": "kana",
        "HENTAIGANA": "kana",
    }
    of |= {name.upper(): name for name in _RANGES if name}
    signs = {"\xaa": "latin", "\xba": "latin", "\u212a": "latin", "\u212b": "latin", "\u2126": "greek"}
    shared = set("\xb5\u0374\u0640") | {
        chr(code) for code in (*range(0x2B9, 0x2E0), *range(0x2E5, 0x2EF), *range(0xA788, 0xA78B))
    }
    for code in range(0x110000):
        letter = chr(code)
        name = unicodedata.name(letter, "")
        if not letter.isalpha() or not name:
            continue
        named = next((of[word] for word in name.split()[:2] if word in of), signs.get(letter))
        if "MATHEMATICAL" in name or letter in shared or (0x2100 <= code < 0x2150 and letter not in signs):
            named = ""
        if name.startswith("MODIFIER LETTER"):
            assert script_of(letter) in ("latin", "greek", "cyrillic", "", None), name
        else:
            assert script_of(letter) == named, name
    ranges = sorted(one for many in _RANGES.values() for one in many)
    assert all(first[1] < second[0] for first, second in pairwise(ranges))


def test_script_share_by_hand() -> None:
    # 4 of 5 letters are Latin; digits and punctuation count for none
    row = pair("ab, cd 12345 !!!", "好")
    with pytest.raises(Reject, match="80% of its letters are of the scripts named, most others han") as caught:
        step("script", allow=["latin"])(row)
    assert (caught.value.field, caught.value.code) == ("", "script")
    assert step("script", allow=["latin"], min_share=0.8)(row) is row
    assert step("script", allow=["latin", "han"])(row) is row
    assert step("script", allow=["han"])(pair("123 + 4", "= 127 ✓ 𝑥")) is not None
    with pytest.raises(Reject, match="0% of its letters"):
        step("script", allow=["cyrillic"])(pair("plain", "ASCII"))
    with pytest.raises(Reject, match="most others other scripts"):
        step("script", allow=["latin"])(pair("ქართული", "ენა"))


@pytest.mark.parametrize(
    ("name", "allow"),
    [
        ("chinese", ["han"]),
        ("japanese", ["han", "kana"]),
        ("persian", ["arabic"]),
        ("arabic", ["arabic"]),
        ("hindi", ["devanagari"]),
        ("french", ["latin"]),
        ("vietnamese", ["latin"]),
        ("russian", ["cyrillic"]),
    ],
)
def test_texts_are_of_their_scripts(name: str, allow: list[str]) -> None:
    assert step("script", allow=allow, min_share=1)(pair(RIGHT[name], RIGHT[name]))


# words


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ("The CAT, sat_on (a) well-known mat!", "the cat sat on a well known mat"),
        ("17+8-3 = 22", "17 + 8 - 3 = 22"),
        ("1−2×3", "1 - 2 * 3"),
        ("f(x)=x-y", "f x = x - y"),
        ("ＡＢ１ x²", "ab1 x2"),
        ("我爱 Python3。", "我 爱 python3"),
        ("नमस्ते दुनिया", "नमस्ते दुनिया"),
        ("한국어 문장", "한국어 문장"),
        ("カタカナ", "カ タ カ ナ"),
        ("السَّلَامُ", "السَّلَامُ"),
        ("don't", "don t"),
        ("…—!", ""),
    ],
)
def test_words(given: str, due: str) -> None:
    assert " ".join(words(given)) == due


def test_plain_text_keeps_its_punctuation() -> None:
    assert plain("  Ｗhat\n is\t17-8? ") == "what is 17-8?"


# all steps

EVERY = [
    {"kind": "unicode"},
    {"kind": "unicode", "form": "NFKC", "fold_width": True},
    {"kind": "unicode", "fold_width": True},
    {"kind": "characters"},
    {"kind": "characters", "replacement": "remove"},
    {"kind": "characters", "replacement": "keep"},
    {"kind": "characters", "fix_encoding": False},
    {"kind": "whitespace"},
    {"kind": "whitespace", "collapse": True},
    {"kind": "length", "max_characters": 30, "min_characters": 2},
    {"kind": "repetition", "ngram": 2},
    {"kind": "refusal"},
    {"kind": "script", "allow": ["latin", "han"]},
]
ANY = st.one_of(st.text(st.characters(), max_size=30), SUSPECTS, st.text("ab \t\r\n\u200b\u3000\u2028 ", max_size=20))


def attempt(made: CleanStep, row: Row) -> tuple[Row, Reject | None]:
    try:
        return made(row), None
    except Reject as reject:
        return row, reject


@st.composite
def rows(draw: Any) -> Row:
    if draw(st.booleans()):
        return {"prompt": draw(ANY), "completion": draw(ANY), "answer": draw(ANY)}
    turns = draw(st.lists(ANY, min_size=2, max_size=6))
    return {"messages": says(*turns[: len(turns) // 2 * 2], system=draw(st.none() | ANY)), "meta": {"a": draw(ANY)}}


@pytest.mark.parametrize("config", EVERY, ids=str)
@settings(max_examples=100, deadline=None)
@given(row=rows())
def test_a_step_gives_a_row_or_a_reject_and_twice_is_once(config: dict[str, Any], row: Row) -> None:
    made = step(**config)
    before = repr(row)
    once, reject = attempt(made, row)
    assert repr(row) == before
    if reject is not None:
        assert reject.code == config["kind"] and reject.reason
        return
    assert {key: type(value) for key, value in once.items()} == {key: type(value) for key, value in row.items()}
    assert all(isinstance(turn["content"], str) for turn in once.get("messages", []))
    assert (once is row) == (once == row)
    assert made(once) is once


@pytest.mark.parametrize("config", EVERY, ids=str)
@given(
    lines=st.lists(
        st.from_regex(r"[a-z]{1,8}( [A-Z0-9.,!?(){}\\$<>&;'\"`~-]{1,8}){0,3}", fullmatch=True), min_size=1, max_size=4
    )
)
@settings(max_examples=30, deadline=None)
def test_clean_ascii_is_never_changed(config: dict[str, Any], lines: list[str]) -> None:
    row = {"prompt": "\n".join(lines), "completion": "\n".join(lines)}
    once, reject = attempt(step(**config), row)
    assert once is row or (reject is not None and reject.code in ("length", "repetition"))


def test_the_stage_asks_for_a_tokenizer() -> None:
    config = {"kind": "data", "sources": [{"kind": "chains"}], "clean": [{"kind": "length", "max_tokens": 10}]}
    with pytest.raises(ValidationError, match="tokenizer"):
        DataStage.model_validate(config)
