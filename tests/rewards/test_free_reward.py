"""What must earn nothing: expressions not worked out, denials, several answers at once, thoughts, other quantities."""

from __future__ import annotations

import pytest

from finery.rewards.answer import AnswerFunction
from finery.rewards.choice import ChoiceFunction

ANSWER = AnswerFunction("auto", "auto")
MATH = AnswerFunction("auto", "math")


def scores(texts: list[str], gold: str) -> dict[str, float | None]:
    return {text: ANSWER.score(text, gold) for text in texts}


@pytest.mark.parametrize(
    ("gold", "expression"),
    [
        ("22", "17+8-3"), ("51", "17 \\times 3"), ("5", "\\frac{17+8}{5}"), ("6", "\\gcd(12,18)"), ("120", "\\binom{10}{3}"),
        ("1/2", "\\int_0^1 x\\,dx"), ("15", "\\sum_{k=1}^{5} k"), ("5", "\\sqrt{25}"), ("5", "sqrt(25)"), ("1024", "2^{10}"),
        ("1", "\\lim_{x\\to 0} \\frac{\\sin x}{x}"), ("5", "|5|"), ("5", "-(-5)"), ("5", "--5"), ("120", "5!"), ("5", "5!"),
        ("5", "5^1"), ("5", "10 \\div 2"), ("5", "\\max(5,4)"), ("5", "5+0"), ("5", "5\\cdot 1"), ("5", "\\lfloor 5.2 \\rfloor"),
    ],
)  # fmt: skip
def test_an_expression_is_no_answer_to_a_number(gold: str, expression: str) -> None:
    texts = [
        f"#### {expression}",
        f"\\boxed{{{expression}}}",
        f"The answer is ${expression}$",
        f"<answer>{expression}</answer>",
    ]
    assert set(scores(texts, gold).values()) == {0.0}
    assert MATH.score(f"\\boxed{{{expression}}}", gold) == 0.0


@pytest.mark.parametrize(
    ("gold", "number"),
    [
        ("5", "5.0"), ("5", "10/2"), ("5", "\\frac{10}{2}"), ("2.5", "2 1/2"), ("2.5", "2\\frac{1}{2}"), ("1500", "1.5e3"),
        ("1500", "1.5 \\times 10^{3}"), ("28", "28\\%"), ("1234567", "1,234,567"), ("1234567", "1{,}234{,}567"), ("5", "(5)"),
        ("5", "x = 5"), ("5", "2+3 = 5"), ("5", "\\left(5\\right)"), ("-5", "minus 5"), ("5", "f(2, 3) = 5"), ("1/2", "2/4"),
    ],
)  # fmt: skip
def test_a_number_may_be_written_in_any_form(gold: str, number: str) -> None:
    assert set(scores([f"#### {number}", f"\\boxed{{{number}}}", f"<answer>{number}</answer>"], gold).values()) == {1.0}


def test_a_gold_expression_is_compared_as_mathematics() -> None:
    assert ANSWER.score("\\boxed{(x+1)^2}", "x^2+2x+1") == ANSWER.score("#### 720", "6!") == 1.0
    assert ANSWER.score("#### 6!", "6!") == ANSWER.score("\\boxed{\\frac{\\sqrt 2}{2}}", "\\frac{1}{\\sqrt{2}}") == 1.0
    assert ANSWER.score("#### 6", "6!") == ANSWER.score("\\boxed{6!}", "6") == 0.0
    assert (
        ANSWER.score("\\boxed{0=2x+1}", "2x+1") == ANSWER.score("\\boxed{\\sqrt 2 \\text{ or } 3}", "\\sqrt{2}") == 0.0
    )


def test_an_exclamation_mark_ends_a_sentence_of_prose() -> None:
    assert scores(["It is 5!", "The answer is 5!", "So we have 5 apples!"], "5") == dict.fromkeys(
        ["It is 5!", "The answer is 5!", "So we have 5 apples!"], 1.0
    )


OTHER = [
    "The answer isn't 5", "The answer isn’t 5", "The answer is probably not 5", "The answer is definitely not 5.",
    "The answer is never 5", "The answer cannot be 5", "The answer can't be 5", "The answer won't be 5", "It is not 5",
    "答案不是5", "答案是不是5", "答案并不是5。", "答案不等于5", "答案肯定不是5", "\\boxed{\\neq 5}", "\\boxed{\\ne 5}", "\\boxed{\\ge 5}",
    "\\boxed{x > 5}", "\\boxed{x \\neq 5}", "The answer is minus 5", "The answer is negative 5", "It is minus 5",
    "The answer is 5 squared", "The answer is 5 cubed", "答案是5的平方", "答案是5的一半", "The answer is half of 5", "The answer is twice 5",
    "The answer is less than 5", "The answer is more than 5", "The answer is at least 5", "答案是小于5", "答案是不超过5",
    "The answer is anything but 5", "The answer is everything except 5", "The answer is 5x + 2", "The answer is 5+3",
    "The answer is 5*3", "The answer is 5 × 3", "The answer is 5 times 3", "The answer is 5 plus 3", "The answer is √5",
    "The answer is 5 pi", "The answer is 5π", "The answer is 5i", "The answer is the square root of 5", "The answer is log 5",
    "The answer is one fifth of 5", "The answer is 5 percent of 3", "The answer is 5 if x is 2", "The answer is 5 unless x",
    "The answer is $5$ squared", "The answer is $\\neq 5$", "So it is sqrt(5)", "So it is √5", "It is 5 pi", "It is 5i",
    "It is less than 5", "It is 5 squared", "Is the answer 5? The answer is 5?", "答案是5吗？", "The answer is a number whose square is 5",
]  # fmt: skip


@pytest.mark.parametrize("text", OTHER)
def test_a_denial_or_another_quantity_is_not_the_number(text: str) -> None:
    assert ANSWER.score(text, "5") == 0.0


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The answer is minus 5", "-5"), ("The answer is negative 5.", "-5"), ("The answer is not 6 but 5", "5"),
        ("The answer is not 6. It is 5.", "5"), ("答案不是6，而是5。", "5"), ("The answer is 5 apples in the box", "5"),
        ("The answer: the total is 5 apples.", "5"), ("The answer is 5, which is prime.", "5"), ("答案是5个苹果。", "5"),
        ("The answer is $5$ apples.", "5"), ("The answer is **5**", "5"), ("The answer is $x = 5$", "5"),
    ],
)  # fmt: skip
def test_what_is_said_plainly_is_read(text: str, gold: str) -> None:
    assert ANSWER.score(text, gold) == 1.0


HEDGES = [
    "#### 5 or 6", "#### $5$ or $6$", "#### 5; 6", "#### 5 = 6", "#### 6 = 5", "#### 5 (or 6)", "#### x=5, x=6", "#### 5 maybe 6",
    "\\boxed{5 \\text{ or } 6}", "\\boxed{5 \\text{ or 6}}", "\\boxed{5_6}", "\\boxed{5\\text{6}}", "\\boxed{6=5}", "\\boxed{5=6}",
    "\\boxed{5 \\lor 6}", "\\boxed{5,6}", "\\boxed{5;6}", "\\boxed{5 \\text{ but } 6}", "\\boxed{x=5=6}", "\\boxed{5} or maybe \\boxed{6}",
    "\\boxed{5}; \\boxed{6}", "\\boxed{5}. \\boxed{6}", "\\boxed{5} / \\boxed{6}", "\\boxed{5}\n\\boxed{6}", "\\boxed{5} (or) \\boxed{6}",
    "\\boxed{5} maybe \\boxed{6}", "\\boxed {5} or \\boxed {6}", "\\boxed{5} 或者 \\boxed{6}", "The answer is 5 or perhaps 6", "The answer is 5 to 6",
    "The answer is 5~6", "The answer is 5–6", "The answer is 5; 6", "The answer is 5? or 6", "The answer is 5! or 6", "The answer is 5? 6?",
    "The answer is 5 6", "The answer is 5, but could be 6", "The answer is 5 if x is odd, 6 otherwise", "The answer is $5$ or maybe $6$",
    "The answer is $5$. Or $6$.", "The answer is $5$; $6$", "The answer is $5$ $6$", "The answer is $5=6$", "The answer is 5 (or 6)",
    "答案是5到6", "答案是5或6", "答案是5～6", "答案:5,也可能是6", "答案是5吗？不，6", "So it is $5$ or $6$", "It is 5 or 6", "It is 5 to 6", "It is 5; 6",
    "it is 6 or it is 5", "it is 5 or it is 6", "$5$ $6$", "<answer>5 or 6</answer>", "<answer>5</answer> or <answer>6</answer>",
    "<answer>5</answer><answer>6</answer>", "<answer>5=6</answer>", "<answer>\\boxed{5}\\boxed{6}</answer>",
]  # fmt: skip


@pytest.mark.parametrize("text", HEDGES)
def test_two_answers_are_neither_of_them(text: str) -> None:
    assert (ANSWER.score(text, "5"), ANSWER.score(text, "6")) == (0.0, 0.0)


@pytest.mark.parametrize("answer", ["#### 5", "\\boxed{5}", "The answer is 5", "<answer>5</answer>", "5"])
def test_what_is_only_thought_is_no_answer(answer: str) -> None:
    thought = f"<think>\n{answer}\n</think>"
    assert scores([f"{thought} I don't know.", f"{thought} So it is 6", f"{thought} \\boxed{{6}}"], "5") == {
        f"{thought} I don't know.": 0.0, f"{thought} So it is 6": 0.0, f"{thought} \\boxed{{6}}": 0.0,
    }  # fmt: skip
    assert ANSWER.score(f"<think>6</think>\n{answer}", "5") == ANSWER.score(f"{thought}\n", "5") == 1.0


def test_a_box_with_a_space_is_read() -> None:
    assert ANSWER.score("\\boxed {5}", "5") == 1.0


@pytest.mark.parametrize(
    "words",
    ["tenths", "hundredths", "halves", "thirds", "fifths", "quarters", "lakh", "crore", "dozen", "doubled", "halved", "squared",
     "below zero", "two", "nine", "nines", "maybe six", "not six", "negative", "inverted", "permille", "basis points", "thousand",
     "bn", "mod seven", "K", "k", "M", "tens", "in base eight", "的平方", "倍多", "左右", "分之一", "万"],
)  # fmt: skip
def test_a_word_that_changes_a_value_is_no_unit(words: str) -> None:
    behind = f"5{words}" if words in "KkM" or not words.isascii() else f"5 {words}"
    texts = [f"#### {behind}", f"\\boxed{{5\\text{{ {words}}}}}" if words not in "KkM" else f"\\boxed{{{behind}}}"]
    assert set(scores(texts, "5").values()) == {0.0}


@pytest.mark.parametrize(
    "text",
    ["15 apples", "15 red apples", "15个苹果", "15元", "15 people", "15 apples in total", "15 dollars each", "15 cups of flour",
     "15 miles per hour", "15 square feet", "15 square units", "15 sq. ft", "15\\text{ ways}", "15\\text{ cm}^2", "15名学生", "15棵树", "15 boys left",
     "15\\ \\text{m/s}", "15\\,\\frac{\\text{m}}{\\text{s}}", "$15", "15 points"],
)  # fmt: skip
def test_a_noun_or_unit_is_set_aside(text: str) -> None:
    assert ANSWER.score(f"#### {text}", "15") == 1.0


def test_multipliers_are_read() -> None:
    assert (
        ANSWER.score("#### 500000", "5 lakh")
        == ANSWER.score("#### 60", "5 dozen eggs")
        == ANSWER.score("#### 2 crore", "20000000")
        == 1.0
    )
    assert ANSWER.check({"answer": "5 tenths"}) is not None
    for gold in ("5k", "5K", "5M", "1.5B"):
        assert "may be a number or a product" in (ANSWER.check({"answer": gold}) or "")
        assert ANSWER.score("#### 5", gold) is None


UNITS = [
    ("5 cm^2", "5 m^2"), ("5 m^2", "5 m"), ("5 m^2", "5 m^3"), ("5\\text{ cm}^2", "5\\text{ m}^2"), ("5 kPa", "5 Pa"), ("5 J", "5 kJ"),
    ("5 W", "5 kW"), ("5 Hz", "5 MHz"), ("5 GB", "5 MB"), ("$5", "€5"), ("$5", "5 cents"), ("5 dollars", "5 cents"), ("5°C", "5°F"),
    ("5 °C", "5 K"), ("5美元", "5元"), ("5元", "5角"), ("5 m/s", "5 km/h"), ("5 mph", "5 km/h"), ("5平方米", "5 m"), ("5平方厘米", "5平方米"),
    ("5 radians", "5 degrees"), ("5 AM", "5 PM"), ("5 hours", "5 min"), ("5£", "5€"), ("5 square feet", "5 feet"), ("5 percent", "5 cm"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNITS)
def test_known_units_that_differ_are_not_equal(one: str, other: str) -> None:
    assert (ANSWER.score(f"#### {one}", other), ANSWER.score(f"#### {other}", one)) == (0.0, 0.0)
    assert (ANSWER.score(f"#### {one}", one), ANSWER.score("#### 5", one), ANSWER.score(f"#### {one}", "5")) == (
        1.0,
        1.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [("5 m²", "5平方米"), ("5 km/h", "5公里每小时"), ("5 kilometers per hour", "5 km/h"), ("$5", "5 US dollars"), ("$5", "5 USD"),
     ("¥5", "5元"), ("¥5", "5 yen"), ("5°", "5°C"), ("£5", "5 pounds"), ("5 lbs", "5 pounds"), ("5 cubic meters", "5 m^3"), ("$5$", "5 m"),
     ("5 m/s^2", "5 meters per second squared")],
)  # fmt: skip
def test_one_unit_may_be_written_in_many_ways(one: str, other: str) -> None:
    assert (ANSWER.score(f"#### {one}", other), ANSWER.score(f"#### {other}", one)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("\\{\\sqrt{2},0.1\\}", "\\{\\sqrt{2},0.1000001\\}"), ("\\{0.1,\\pi,\\sqrt{2}\\}", "\\{\\sqrt{2},\\pi,0.1000001\\}"),
        ("(\\sqrt{2},0.1)", "(\\sqrt{2},0.1000001)"), ("\\begin{pmatrix}0.1\\\\2\\end{pmatrix}", "\\begin{pmatrix}0.1000001\\\\2\\end{pmatrix}"),
        ("\\begin{pmatrix}\\sqrt{2}&1\\\\0.1&3\\end{pmatrix}", "\\begin{pmatrix}\\sqrt{2}&1\\\\0.1000001&3\\end{pmatrix}"),
    ],
)  # fmt: skip
def test_members_of_sets_and_matrices_are_exact(gold: str, wrong: str) -> None:
    assert (ANSWER.score(f"\\boxed{{{wrong}}}", gold), ANSWER.score(f"\\boxed{{{gold}}}", gold)) == (0.0, 1.0)


def test_a_rounding_of_an_irrational_member_still_stands_for_it() -> None:
    assert ANSWER.score("\\boxed{\\{0.1, 1.414214\\}}", "\\{\\sqrt{2},0.1\\}") == 1.0
    assert ANSWER.score("\\boxed{\\{0.1, 1.41421\\}}", "\\{\\sqrt{2},0.1\\}") == 0.0


LETTERS = ChoiceFunction(["A", "B", "C", "D"], "auto")


@pytest.mark.parametrize(
    "text",
    ["The answer is not B", "The answer is probably not B", "The answer isn't B", "Not B", "It is not B", "#### Not B", "#### B is wrong",
     "\\boxed{\\neq B}", "\\boxed{\\text{not }B}", "\\boxed{\\lnot B}", "\\boxed{\\overline{B}}", "\\boxed{B^c}", "答案不是B", "不选B", "B不对",
     "<answer>everything except B</answer>", "<answer>anything but B</answer>", "B is wrong", "vitamin B", "B+", "The answer is B? No.", "B?",
     "The answer is either B", "<think>B</think> I do not know", "It cannot be B", "We rule out B"],
)  # fmt: skip
def test_a_denied_choice_is_not_chosen(text: str) -> None:
    assert {LETTERS.score(text, gold) for gold in "ABCD"} == {0.0}
    if "<think>" not in text:
        assert ChoiceFunction(["A", "B", "C", "D"], "last").score("It is not B", "B") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "(B)",
        "B.",
        "B is correct",
        "Option B",
        "I choose B.",
        "选B",
        "我选择B",
        "The correct option is B.",
        "So the answer is:\n**B) Paris**",
        "答案：B. 12",
    ],
)
def test_a_choice_that_stands_alone_or_is_stated_is_chosen(text: str) -> None:
    assert LETTERS.score(text, "B") == 1.0


def test_a_choice_of_words_is_not_found_in_its_opposite() -> None:
    yes = ChoiceFunction(["yes", "no"], "auto")
    assert [yes.score(text, "no") for text in ("no way", "not no", "know", "No.")] == [0.0, 0.0, 0.0, 1.0]
    mood = ChoiceFunction(["positive", "negative"], "auto")
    texts = ("not positive", "isn't positive", "non-positive", "It is positive.")
    assert [mood.score(text, "positive") for text in texts] == [0.0, 0.0, 0.0, 1.0]
