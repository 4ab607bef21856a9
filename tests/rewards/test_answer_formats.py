"""Every way of writing a number that `answer` reads, each in an English and in a Chinese text."""

from __future__ import annotations

import pytest

from finery.rewards.answer import AnswerFunction

ANSWER = AnswerFunction("auto", "auto")

EQUAL = {
    "integer": ("42", "42", "42"),
    "decimal": ("2.5", "2.50", "2.5"),
    "fraction": ("1/2", "0.5", "1/2"),
    "mixed number": ("7/3", "2 1/3", "2又1/3"),
    "mixed number in LaTeX": ("\\frac{7}{3}", "$2\\frac{1}{3}$", "$2\\frac{1}{3}$"),
    "vulgar fraction": ("5/2", "2½", "2½"),
    "fraction in words": ("1/3", "1/3", "3分之1"),
    "\\frac": ("3/4", "$\\frac{3}{4}$", "$\\frac{3}{4}$"),
    "\\dfrac": ("3/4", "$\\dfrac34$", "$\\dfrac34$"),
    "\\sqrt": ("\\sqrt{8}", "$2\\sqrt{2}$", "$2\\sqrt{2}$"),
    "root sign": ("\\sqrt{2}", "$\\sqrt2$", "√2"),
    "\\pi": ("\\frac{\\pi}{2}", "$\\pi/2$", "π/2"),
    "\\cdot": ("6\\sqrt{3}", "$2\\cdot 3\\sqrt{3}$", "$2\\cdot 3\\sqrt{3}$"),
    "power": ("2^{10}", "$2^{10}$", "$2^{10}$"),
    "percent": ("28%", "28\\%", "28％"),
    "percent in words": ("28%", "28 percent", "百分之28"),
    "unit": ("15", "15 apples", "15个苹果"),
    "unit in \\text": ("15 cm", "$15\\text{ cm}$", "$15\\text{ cm}$"),
    "known unit": ("15厘米", "15 cm", "15厘米"),
    "money": ("29", "$29.00", "29元"),
    "degrees": ("90", "$90^\\circ$", "90度"),
    "unit with a power": ("25", "25 m²", "25平方米"),
    "multiplier": ("3000000", "3 million", "300万"),
    "thousands, comma": ("1234567", "1,234,567", "1,234,567"),
    "thousands, space": ("1234567", "1 234 567", "1 234 567"),
    "thousands, no-break space": ("1234567", "1\u00a0234\u00a0567", "1\u00a0234\u00a0567"),
    "thousands, {,}": ("1234", "$1{,}234$", "$1{,}234$"),
    "thousands, \\,": ("1234", "$1\\,234$", "$1\\,234$"),
    "thousands, full-width": ("1234", "１，２３４", "１，２３４"),
    "sign": ("-5", "-5", "负5"),
    "plus sign": ("5", "+5", "+5"),
    "Unicode minus": ("-5", "−5", "−5"),
    "full-width minus": ("-5", "－5", "－５"),
    "scientific, e": ("1500", "1.5e3", "1.5e3"),
    "scientific, \\times": ("1500", "$1.5 \\times 10^{3}$", "$1.5 \\times 10^{3}$"),
    "scientific, ×³": ("1500", "1.5×10³", "1.5×10³"),
    "scientific, ×^": ("0.0015", "1.5 × 10^-3", "1.5×10⁻³"),
    "power of ten": ("0.001", "$10^{-3}$", "10⁻³"),
    "full-width digits": ("12.5", "１２．５", "１２．５"),
    "set": ("\\{1,2\\}", "$\\{2, 1\\}$", "｛2，1｝"),
    "set of roots": ("\\{\\sqrt{2},1\\}", "$\\{1,\\sqrt{2}\\}$", "$\\{1,\\sqrt{2}\\}$"),
    "interval": ("[0,1)", "$[0, 1)$", "[0，1）"),
    "endless interval": ("(-\\infty,3]", "$(-\\infty, 3]$", "（－∞，3]"),
    "tuple": ("(1,-2)", "$(1, -2)$", "（1，−2）"),
    "list": ("3, -3", "3 or -3", "3或-3"),
    "list with 、": ("1, 2, 3", "1, 2 and 3", "1、2和3"),
    "plus-minus": ("\\pm 3", "$\\pm 3$", "±3"),
    "plus-minus as a list": ("1 \\pm 2", "$3$ or $-1$", "$3$或$-1$"),
    "assignment": ("5", "$x = 5$", "x = 5"),
    "clock": ("12:30", "12:30", "12:30"),
}  # fmt: skip


def texts(english: str, chinese: str) -> list[str]:
    return [
        f"We add them up. So the answer is {english}.",
        f"**Answer:** {english}",
        f"Thus $\\boxed{{{english.strip('$')}}}$ is what we want." if not english.startswith("$29") else f"\\boxed{{{english}}}",
        f"first 7, then\n#### {english}",
        f"<think>7</think><answer>{english}</answer>",
        f"把它们加起来，答案是{chinese}。",
        f"先算7，所以答案：{chinese}",
        f"**答：{chinese}。**",
        f"先算7，因此 \\boxed{{{chinese.strip('$')}}}。",
        f"先算7\n#### {chinese}",
        f"<think>先算7</think><answer>{chinese}</answer>",
    ]  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_a_format_is_read_in_english_and_in_chinese(name: str) -> None:
    gold, english, chinese = EQUAL[name]
    got = {text: ANSWER.score(text, gold) for text in texts(english, chinese)}
    assert got == dict.fromkeys(got, 1.0)


UNEQUAL = {
    "integer": ("42", "43", "24"),
    "decimal": ("2.5", "2.51", "2.4"),
    "fraction": ("1/3", "0.333", "1/4"),
    "mixed number": ("2", "2 1/3", "2又1/3"),
    "\\frac": ("3", "$\\frac{3}{4}$", "$\\frac{4}{3}$"),
    "\\sqrt": ("2", "$\\sqrt{2}$", "√2"),
    "power": ("10", "$2^{10}$", "2的10次方"),
    "percent": ("0.28", "28%", "百分之28"),
    "unit": ("5 cm", "5 m", "5米"),
    "multiplier": ("3", "3 million", "3万"),
    "thousands": ("234", "1,234", "1 234"),
    "sign": ("5", "-5", "负5"),
    "Unicode minus": ("5", "−5", "−5"),
    "scientific": ("1.5", "1.5e3", "1.5×10³"),
    "full-width digits": ("123", "１２", "１３２"),
    "set": ("\\{1,2\\}", "$\\{1,3\\}$", "｛1｝"),
    "interval": ("[0,1)", "$[0,1]$", "（0，1）"),
    "tuple": ("(1,2)", "$(2,1)$", "（2，1）"),
    "list": ("3", "3 or 4", "3或4"),
    "list, the last": ("4", "3 or 4", "3或者4"),
    "plus-minus": ("3", "$\\pm 3$", "±3"),
    "half more": ("3", "3 and a half", "3个半"),
    "clock": ("12:30", "2:30", "12:03"),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_not_equal_is_wrong_in_english_and_in_chinese(name: str) -> None:
    gold, english, chinese = UNEQUAL[name]
    got = {text: ANSWER.score(text, gold) for text in texts(english, chinese)}
    assert got == dict.fromkeys(got, 0.0)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The total is 42.", "42"),
        ("Two of them cost $3.50, so it is $7.00 in all", "7"),
        ("So $x = \\sqrt{2}$.", "\\sqrt{2}"),
        ("Total: $3 \\times 4 = 12$", "12"),
        ("一共是42个苹果。", "42"),
        ("所以小明还剩下3.5元", "3.5"),
        ("气温是-5度", "-5"),
        ("#### Step 2: add\n3+4=7\nThe answer is 7", "7"),
        ("The answer is not 5. The answer is 6.", "6"),
        ("The answer is 6. The answer is not 5.", "6"),
        ("答案不是5，答案是6。", "6"),
        ("The answer is 18, since 3*6=18.", "18"),
        ("答案是18，因为3×6=18。", "18"),
        ("Final Answer: The number of points in $f(x)$ is 19.", "19"),
        ("Answer:\n42", "42"),
        ("The answer is **42**.", "42"),
        ("答案：**42**", "42"),
        ("最终答案为 42", "42"),
        ("The answer is $2$ and $3$.", "2, 3"),
        ("\\boxed{2} \\quad \\text{or} \\quad \\boxed{3}", "\\{2,3\\}"),
        ("The answer is 42 (as we saw before).", "42"),
    ],
)
def test_the_answer_is_found_where_people_write_it(text: str, gold: str) -> None:
    assert ANSWER.score(text, gold) == 1.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("It is 5 or 6.", "6"), ("It is 5 or 6.", "5"), ("The answer is 5 or 6.", "5"), ("答案是5或6。", "6"),
        ("the answer is 5, 6 or 7", "5"), ("So $x = \\sqrt{2}$", "2"), ("x2", "2"), ("The area is 25 m²", "2"),
        ("It is 1000,99", "99"), ("The answer is not 5.", "6"), ("AZYUK2A", "2"),
        ("<answer>5</answer><answer>6</answer>", "5"), ("\\boxed{6} so the answer is \\boxed{", "6"),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_its_own_is_not_taken(text: str, gold: str) -> None:
    assert ANSWER.score(text, gold) == 0.0


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("#### 4", "after ####"),
        ("\\boxed{4}", "in \\boxed{}"),
        ("<answer>4</answer>", "in <answer>"),
        ("The answer is 4", "after `answer is`"),
        ("答案是4", "after `答案是`"),
        ("答：4", "after `答`"),
        ("So $y=4$", "the last formula"),
        ("it is 4", "the last number"),
    ],
)
def test_the_explanation_says_which_part_was_taken(text: str, where: str) -> None:
    said = ANSWER.explain({"answer": "4"}, text, [], False)
    assert where in said
    assert "equals '4'" in said


def test_the_explanation_says_why_there_is_no_score_or_no_answer() -> None:
    def explain(answer: str, text: str, truncated: bool = False) -> str:
        return ANSWER.explain({"answer": answer}, text, [], truncated)

    assert explain("see figure", "4") == (
        "abstains: the row's answer is words (see), not mathematics; compare: text compares words"
    )
    assert explain("4", "\\boxed{") == "no answer in \\boxed{}: empty, or not closed"
    assert explain("4", "nothing") == "no answer found (auto)"
    assert explain("4", "#### 4", truncated=True) == "truncated: a completion that was cut has no final answer"
    assert explain("4", "#### 5") == "'5' after #### is not '4', as exact numbers"
    assert explain("(1,2)", "#### [1,2]") == "'[1,2]' after #### is not '(1,2)', as lists of exact numbers"
    assert explain("\\sqrt{2}", "#### 2^{1/2}") == "'2^{1/2}' after #### equals '\\\\sqrt{2}', by math-verify"


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("0.333333", "0.3333330001"), ("0.1", "0.1000000001"), ("1/8", "0.1250001"), ("1/3", "0.3333"),
        ("1/3", "0.333334"), ("1/3", "33333333/100000000"), ("2/3", "0.666666"), ("1000000", "1000000.0000001"),
        ("0", "0.0000001"), ("1/3", "\\frac{3333333}{10000000}"), ("\\frac{1}{3}+\\frac{1}{3}", "0.6666"),
        ("\\frac{1}{2}+\\frac{1}{4}", "0.7500001"), ("(1/3, \\frac{1}{2}+0)", "(0.3333331, 0.5)"),
        ("\\{\\frac{1}{2}+0, 1\\}", "\\{0.5000001, 1\\}"), ("[\\frac{1}{2}+0, 1)", "[0.5000001, 1)"),
    ],
)  # fmt: skip
def test_two_different_rationals_are_never_equal_by_rounding(gold: str, text: str) -> None:
    assert ANSWER.score(f"\\boxed{{{text}}}", gold) == 0.0
    assert AnswerFunction("auto", "math").score(f"\\boxed{{{text}}}", gold) == 0.0


@pytest.mark.parametrize(
    ("gold", "text"),
    [("1/3", "0.333333"), ("2/3", "0.6666667"), ("0.333333", "1/3"), ("\\frac{1}{6}+\\frac{1}{6}", "0.333333"),
     ("\\frac{1}{2}+\\frac{1}{4}", "0.75"), ("\\sqrt{2}", "1.414214")],
)  # fmt: skip
def test_what_no_decimal_can_write_equals_its_rounding_to_six_places(gold: str, text: str) -> None:
    assert ANSWER.score(f"\\boxed{{{text}}}", gold) == 1.0


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        (None, "is missing"), ("", "is empty"), ("  ", "is empty"), ("####", "has a mark (#### or \\boxed) with no answer"),
        ("see figure", "is words (see), not mathematics; compare: text compares words"),
        ("\\frac{1}{0}", "has no value (a division by zero)"), ("三", "cannot be read as mathematics"),
        ("9^{9^{9^{9}}}", "is beyond the guards against oversized expressions"),
        ("6", None), ("-\\frac{1}{2}", None), ("\\sqrt{2}", None), ("\\text{even}", None), ("12:30", None), ("1、2和3", None),
    ],
)  # fmt: skip
def test_case_R3_a_gold_answer_that_cannot_be_read_is_found_with_its_reason(
    gold: str | None, reason: str | None
) -> None:
    assert ANSWER.check({"prompt": "p", "answer": gold}) == reason
    assert (ANSWER.score("\\boxed{6}", gold) is None) == (reason is not None)


def test_a_gold_answer_is_checked_by_the_comparison_asked_for() -> None:
    assert AnswerFunction("auto", "number").check({"answer": "\\sqrt{2}"}) == "is not a number"
    assert AnswerFunction("auto", "text").check({"answer": "see figure"}) is None
    assert AnswerFunction("auto", "math").check({"answer": "6"}) is None


@pytest.mark.parametrize(
    ("gold", "text", "equal"),
    [("\\text{Evelyn}", "\\boxed{\\text{Evelyn}}", 1.0), ("\\text{Even}", "The answer is even.", 1.0),
     ("\\text{odd}", "\\boxed{even}", 0.0), ("\\text{(C)}", "\\boxed{C}", 1.0), ("\\mathrm{e}", "\\boxed{e}", 1.0)],
)  # fmt: skip
def test_words_in_latex_are_compared_as_words(gold: str, text: str, equal: float) -> None:
    assert ANSWER.score(text, gold) == equal
