from __future__ import annotations

from typing import Any

from finery.data.clean import contamination
from finery.data.clean.hashing import Lookup, hash64, multipliers, ngram_hashes
from finery.data.clean.texts import CleanStep
from finery.data.dataset import Row
from finery.data.records import Reject
from finery.schemas.data import Decontaminate


def says(*turns: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(turns)
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]


def against(rows: list[Row], **more: Any) -> CleanStep:
    config = Decontaminate.model_validate({"against": ["exam.test"], **more})
    return contamination(config, {"exam.test": rows})


def why(step: CleanStep, row: Row) -> tuple[str, str] | None:
    """(field, reason) of a row that is dropped, None for one that is kept as it is."""
    try:
        kept = step(row)
    except Reject as dropped:
        return dropped.field, f"{'' if dropped.code == 'contaminated' else dropped.code}{dropped.reason}"
    assert kept is row
    return None


STORY = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."


def test_one_shared_ngram_drops_a_row() -> None:
    step = against([{"prompt": STORY, "answer": "72"}])
    row = {
        "prompt": "Count.",
        "completion": "You see: NATALIA sold clips -- to 48 of her friends in april and, then (she) went.",
    }
    assert why(step, row) == (
        "completion",
        "'natalia sold clips to 48 of her friends in april and then she' stands in exam.test",
    )
    # twelve words of it are one too few
    assert (
        why(step, {"prompt": "Natalia sold clips to 48 of her friends in April and then", "completion": "She what?"})
        is None
    )


def test_a_reference_answer_counts_and_turns_are_named() -> None:
    answer = "She sold 24 clips in May and 48 in April which makes 72 clips altogether."
    step = against([{"messages": says("How many?", answer)}])
    assert why(step, {"messages": says("q", "a", "r", f"Well: {answer}")}) == (
        "messages[3].content",
        "'she sold 24 clips in may and 48 in april which makes 72' stands in exam.test",
    )
    assert why(against([{"prompt": "How many?", "answer": answer}]), {"prompt": "q", "completion": answer}) is not None


def test_system_messages_are_shared_by_right() -> None:
    system = "You are a careful assistant who thinks step by step and writes the answer after four hashes."
    step = against([{"prompt": says("What is the boiling point of water?", system=system), "answer": "100"}])
    assert why(step, {"messages": says("What is 2 + 2?", "4", system=system)}) is None
    assert why(step, {"messages": says(system, "Fine.")}) is None


def test_a_short_answer_proves_nothing() -> None:
    step = against(
        [
            {"prompt": "What is six times seven, said in digits please?", "answer": "42"},
            {"prompt": "Where does a cell make its energy and why?", "completion": "In the mitochondria of the cell."},
        ]
    )
    assert why(step, {"prompt": "Six and thirty-six?", "completion": "42", "answer": "42"}) is None
    assert why(step, {"prompt": "Where is ATP made?", "completion": "In the mitochondria of the cell."}) is None


def test_a_short_question_is_found_whole() -> None:
    step = against([{"prompt": "What is the capital of France?", "answer": "Paris"}])
    assert why(step, {"prompt": "Tell me: what IS the capital of France, please", "answer": "Paris"}) == (
        "prompt",
        "'what is the capital of france' stands in exam.test",
    )
    assert why(step, {"prompt": "What is the capital of Gaul?", "answer": "Lyon"}) is None
    assert why(step, {"prompt": "The capital of France: what is it?", "answer": "Paris"}) is None


def test_a_very_short_prompt_must_be_the_whole_prompt() -> None:
    step = against([{"prompt": "17+8-3", "answer": "22"}, {"prompt": says("Go on!", "Yes", "Thanks"), "answer": "y"}])
    assert why(step, {"prompt": says(" １７+8-3 "), "completion": "22"}) == (
        "prompt",
        "its prompt is one of exam.test: '17+8-3'",
    )
    assert why(step, {"prompt": "17-8+3", "completion": "12"}) is None
    assert why(step, {"prompt": "Work out 17+8-3", "completion": "22"}) is not None  # five words: 17 + 8 - 3
    assert why(step, {"prompt": "Go on!", "completion": "Well."}) is None
    assert why(step, {"messages": says("go on!", "What?", "thanks", "Fine.")}) is not None


def test_arithmetic_is_told_apart_by_its_signs() -> None:
    step = against([{"prompt": "Q:17+8-3+2-1\n", "answer": "23"}])
    assert why(step, {"prompt": "Q:17+8-3+2-1\n", "completion": "A:23"})
    assert why(step, {"prompt": "Q:17-8+3-2+1\n", "completion": "A:11"}) is None


def test_overlap_is_a_share_of_the_rows_ngrams() -> None:
    shared = "a b c d e f g h i j"  # 10 words, 6 of its 5-grams
    row = {"prompt": "x", "completion": f"{shared} 1 2 3 4"}  # 14 words, 10 5-grams, 6 of them shared
    assert why(against([{"prompt": shared}], ngram=5, overlap=0.6), row) is None
    assert why(against([{"prompt": shared}], ngram=5, overlap=0.59), row) == (
        "completion",
        "'a b c d e' stands in exam.test; 60% of its 5-grams do, overlap is 0.59",
    )
    # an equal prompt is dropped at any share
    long = " ".join(map(str, range(100)))
    assert why(
        against([{"prompt": shared}], ngram=5, overlap=0.9), {"prompt": "A b c d e f g  h i j", "completion": long}
    )


def test_chinese_is_compared_by_character() -> None:
    step = against([{"prompt": "小明有三个苹果，他又买了五个苹果，一共有几个？", "answer": "八"}])
    found = why(step, {"prompt": "题目：小明有三个苹果他又买了五个橙子", "completion": "八"})
    assert found == ("prompt", "'小 明 有 三 个 苹 果 他 又 买 了 五 个' stands in exam.test")
    assert why(step, {"prompt": "小红有三个苹果，他又买了两个苹果。", "completion": "五"}) is None
    assert (
        why(against([{"prompt": "法国的首都是哪里？"}]), {"prompt": "请问法国的首都是哪里", "completion": "巴黎"})
        is not None
    )


def test_the_first_set_that_has_it_is_named() -> None:
    config = Decontaminate.model_validate({"against": ["one.test", "two.test"]})
    other = "a wholly different question about trains that leave two stations at the same time today"
    sets = {"one.test": [{"prompt": STORY}], "two.test": [{"prompt": STORY}, {"prompt": other}]}
    step = contamination(config, {name: iter(rows) for name, rows in sets.items()})
    assert why(step, {"prompt": f"x {STORY}", "completion": "c"})[1].endswith("stands in one.test")  # type: ignore[index]
    assert why(step, {"prompt": f"x {other}", "completion": "c"})[1].endswith("stands in two.test")  # type: ignore[index]


def test_empty_sets_and_rows_without_words() -> None:
    assert why(against([]), {"prompt": STORY, "completion": "c"}) is None
    assert why(against([{"prompt": "???", "answer": "!"}]), {"prompt": "...", "completion": "—"}) is None
    assert why(against([{"prompt": STORY}]), {"prompt": "...", "completion": ""}) is None


def test_ngram_hashes_by_hand() -> None:
    import numpy as np

    values = [3, 5, 2**64 - 1, 7]
    by = [11, 2**63 + 1]
    due = [(values[i] * by[0] + values[i + 1] * by[1]) % 2**64 for i in range(3)]
    assert ngram_hashes(np.array(values, np.uint64), np.array(by, np.uint64)).tolist() == due
    assert multipliers(3, "a").tolist() == [hash64(str(i), "a") | 1 for i in range(3)]
    assert hash64("finery") == 2686365550134006741  # the same everywhere


def test_lookup_finds_what_is_there() -> None:
    import numpy as np

    values = np.array(sorted({hash64(str(i)) for i in range(1000)} | {0, 2**64 - 1}), np.uint64)
    asked = np.array([hash64("7"), 1, 2**64 - 1, 0, hash64("7") + 1, hash64("2000")], np.uint64)
    found = Lookup(values).find(asked)
    assert [place for place, _ in found] == [0, 2, 3]
    assert all(values[at] == asked[place] for place, at in found)
    assert Lookup(values[:0]).find(asked) == []
