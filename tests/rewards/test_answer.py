from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from finery.errors import StageError
from finery.rewards import Scores, latex, worker
from finery.rewards.answer import AnswerFunction
from finery.rewards.extract import extract
from finery.rewards.numbers import parse_number

AUTO = {"kind": "answer"}
HASH = {"kind": "answer", "extract": "hash", "compare": "number"}
R1 = json.loads((Path(__file__).parents[1] / "cases/R1.json").read_text())


@pytest.mark.parametrize("case", R1, ids=[f"{c['gold']} | {c['pred'][:30]}" for c in R1])
def test_case_R1_mathematical_equivalence(score: Callable[..., Scores], case: dict[str, Any]) -> None:
    assert score(AUTO, [(case["gold"], case["pred"])]).per_reward["answer"] == [float(case["expected"])]


def test_case_R3_an_unreadable_gold_answer_abstains_whatever_the_completion(
    score: Callable[..., Scores], cases: Path
) -> None:
    golds = [json.loads(line)["answer"] for line in (cases / "R3.jsonl").read_text().splitlines()]
    for text in ("#### 6", "\\boxed{6}", "see figure", "\\boxed{\\frac{1}{0}}", ""):
        for cut in (False, True):
            scores = score(AUTO, [(gold, text) for gold in golds], cut)
            assert scores.per_reward["answer"][:3] == scores.total[:3] == scores.solved[:3] == [None, None, None]
            right = "6" in text and not cut
            assert (scores.per_reward["answer"][3], scores.solved[3]) == (float(right), right)


def test_case_R3_a_row_without_an_answer_abstains(score: Callable[..., Scores]) -> None:
    for reward in (AUTO, HASH, {"kind": "answer", "compare": "text"}, {"kind": "answer", "compare": "math"}):
        assert score(reward, [(None, "#### 6"), ("", "#### ")]).solved == [None, None]


def r4(gold: str, preds: list[str]) -> list[float | None]:
    return AnswerFunction("auto", "math")(completions=preds, answer=[gold] * len(preds))


@pytest.mark.slow
def test_case_R4_oversized_expressions_are_wrong_in_any_thread_or_process(cases: Path) -> None:
    case = json.loads((cases / "R4.json").read_text())
    ask = (case["gold"], case["preds"])
    assert r4(*ask) == case["expected"]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(r4(*ask)))
    thread.start()
    thread.join()
    assert found == [case["expected"]]
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(r4, [ask[0]] * 4, [ask[1]] * 4)) == [case["expected"]] * 4


@pytest.mark.slow
def test_case_R4_a_hanging_verifier_is_killed_and_the_next_answer_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    short = worker.Worker(deadline=1.0)
    monkeypatch.setattr(worker, "SHARED", short)
    monkeypatch.setattr(latex, "_within_guards", lambda text: True)
    latex._verdicts.clear()
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(r4("\\sqrt{7}", ["\\boxed{9^{9^{9^{9}}}}", "\\boxed{7^{1/2}}"]))
    )
    thread.start()
    thread.join()
    assert found == [[0.0, 1.0]]
    with pytest.raises(worker.TooLong):
        short.ask("math", gold="7", answer="9^{9^{9^{9}}}")
    assert short.ask("math", gold="7", answer="7") is True
    short.close()


@pytest.mark.slow
def test_the_worker_answers_again_after_its_process_died() -> None:
    one = worker.Worker()
    assert one.ask("math", gold="\\frac{1}{2}", answer="0.5") is True
    assert one._process is not None
    one._process.kill()
    one._process.wait()
    assert one.ask("math", gold="x+1", answer="1+x") is True
    one.close()


def test_the_worker_is_given_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-9b1e")
    one = worker.Worker()
    one.ask("math", gold="1", answer="1")
    assert one._process is not None
    if sys.platform == "linux":
        assert b"canary" not in Path(f"/proc/{one._process.pid}/environ").read_bytes()
    one.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.", 1234), ("$29.00", 29), ("-5", -5), ("−5", -5), ("-$5", -5), ("$-5$", -5), ("+7", 7),
        (".5", Fraction(1, 2)), ("1/3", Fraction(1, 3)), ("-1/3", Fraction(-1, 3)), ("1.5e3", 1500),
        ("1e-3", Fraction(1, 1000)), ("28%", 28),
        ("28\\%", 28), ("28 percent", 28), ("15\\text{ apples}", 15), ("3 apples.", 3),
        ("\\frac{-3}{4}", Fraction(-3, 4)),
        ("-\\dfrac34", Fraction(-3, 4)), ("1{,}000", 1000), ("90^\\circ", 90), ("**12**", 12),
        ("€1,000,000.50", Fraction(2000001, 2)),
    ],
)  # fmt: skip
def test_numbers_are_read_exactly(text: str, value: Fraction) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "5x", "2 pi", "1,23", "12,34,567", "1/0", "\\frac{1}{0}", "1e99999", "5 or 6", "1.2.3",
     "12:00", "3^2", "2\\sqrt{2}", "9" * 500, "1-2", "4 5"],
)  # fmt: skip
def test_what_is_not_one_number_is_none(text: str) -> None:
    assert parse_number(text) is None


def test_a_percent_sign_is_a_unit() -> None:
    function = AnswerFunction("auto", "auto")
    assert function.score("28%", "28") == function.score("28", "28\\%") == 1.0
    assert function.score("0.28", "28%") == function.score("28%", "0.28") == 0.0


@pytest.mark.parametrize(
    ("text", "how", "found"),
    [
        ("A:17+8=25\n25-3=22\n#### 22", "hash", "22"),
        ("#### 3\n#### 4 \nend", "hash", "4"),
        ("no mark", "hash", None),
        ("####", "hash", None),
        ("\\boxed{\\frac{1}{\\{2\\}}} x", "boxed", "\\frac{1}{\\{2\\}}"),
        ("\\boxed{1} then \\boxed{2}", "boxed", "2"),
        ("\\boxed{1}, \\boxed{2} and \\boxed{3}", "boxed", "1,2,3"),
        ("\\boxed{1} \\boxed{", "boxed", None),
        ("17-18=-1", "last_number", "-1"),
        ("pages 3-5", "last_number", "5"),
        ("x-5", "last_number", "5"),
        ("17+8=25,25-3=22,22", "last_number", "22"),
        ("25,22", "last_number", "22"),
        ("so 1,234", "last_number", "1,234"),
        ("it costs -$1,200.50!", "last_number", "-$1,200.50"),
        ("none", "last_number", None),
        ("the answer is $x^2$.", "auto", "x^2"),
        ("The answer: 12. I checked 3 times.", "auto", "12"),
        ("The answer is B", "auto", "B"),
        (" x \n", "whole", "x"),
    ],
)
def test_the_final_answer_is_found(text: str, how: str, found: str | None) -> None:
    assert extract(text, how) == found


@pytest.mark.parametrize(
    ("gold", "text", "equal"),
    [
        ("x^2+2x+1", "\\boxed{(x+1)^2}", 1.0),
        ("\\frac{\\pi}{2}", "#### \\pi/2", 1.0),
        ("2\\sqrt{2}", "\\boxed{\\sqrt{8}}", 1.0),
        ("\\infty", "\\boxed{\\infty}", 1.0),
        ("x+1", "\\boxed{x+2}", 0.0),
        ("x+1", "nothing", 0.0),
        ("12:00", "12:00", 1.0),
        ("Step one.\n#### 1,000", "so 1000", 1.0),
        ("$\\sqrt{2}$", "\\boxed{2^{1/2}}", 1.0),
    ],
)
def test_mathematics_is_compared_by_math_verify(gold: str, text: str, equal: float) -> None:
    assert AnswerFunction("auto", "auto").score(text, gold) == equal


def test_text_is_compared_after_nfkc_and_white_space() -> None:
    function = AnswerFunction("whole", "text")
    assert function.score(" New\n York ", "New York") == 1.0
    assert function.score("new york", "New York") == 0.0


def test_a_truncated_completion_has_no_answer(score: Callable[..., Scores]) -> None:
    scores = score(HASH, [("22", "#### 22")], True)
    assert (scores.per_reward["answer"], scores.solved) == ([0.0], [False])


def test_numbers_are_scored_without_torch_math_verify_or_a_process() -> None:
    code = """
import sys
from finery.rewards import build
from finery.schemas.rewards import AnswerReward
rewards = build([AnswerReward(kind="answer", extract="hash", compare="number")], {})
rows = [{"prompt": "Q", "answer": str(i)} for i in range(1000)]
scores = rewards.score(rows, [f"A:\\n#### {i}" for i in range(1000)], [[1]] * 1000, [False] * 1000)
assert scores.solved == [True] * 1000
heavy = {"torch", "math_verify", "sympy", "transformers", "reasoning_gym", "datasets", "pandas"} & set(sys.modules)
assert not heavy, heavy
from finery.rewards import worker
assert worker.SHARED._process is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_row_set_without_answers_is_an_error(rewards: Callable[..., Any]) -> None:
    with pytest.raises(StageError, match="needs rows with an `answer`"):
        rewards(AUTO).score([{"prompt": "p"}], ["#### 4"], [[1]], [False])


def test_a_worker_whose_owner_is_gone_ends_in_the_middle_of_a_verification() -> None:
    one = worker.Worker(deadline=0.5)
    one.ask("math", gold="1", answer="1")
    process = one._process
    assert process is not None
    assert process.stdin is not None
    request = {"op": "math", "request": {"gold": "7", "answer": "9^{9^{9^{9}}}"}, "cpu": 0.5, "wall": 2}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.close()
    assert process.wait(timeout=60) == -signal.SIGPROF


def test_the_verdict_on_an_answer_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = worker.Worker.ask
    monkeypatch.setattr(worker.Worker, "ask", lambda self, op, **more: asked.append(op) or ask(self, op, **more))
    function = AnswerFunction("auto", "auto")
    assert [function.score("\\boxed{n+2}", "n+1"), function.score("\\boxed{n+2}", "n+1")] == [0.0, 0.0]
    assert asked == ["math_gold", "math"]
