"""math-verify's own pairs: `answer` agrees with their authors, or departs for a reason that stands beside the pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finery.rewards.answer import AnswerFunction

PAIRS = json.loads(Path(__file__).with_name("math_verify_pairs.json").read_text(encoding="utf-8"))["pairs"]


@pytest.mark.slow
def test_answer_agrees_with_math_verifys_authors_or_departs_for_a_written_reason() -> None:
    function = AnswerFunction("auto", "auto", workers=2)
    got = function([pair["pred"] for pair in PAIRS], [pair["gold"] for pair in PAIRS])
    wrong = [
        (pair["gold"][-80:], pair["pred"][-80:], score)
        for pair, score in zip(PAIRS, got, strict=True)
        if score != pair.get("got", pair["expected"])
    ]
    assert wrong == []


def test_every_departure_has_a_reason_and_only_two_are_not_stricter() -> None:
    departures = [pair for pair in PAIRS if "got" in pair]
    assert len(PAIRS) == 272
    assert sum(pair["expected"] for pair in PAIRS) == 230
    assert all(pair["got"] != pair["expected"] and pair["reason"] for pair in departures)
    lenient = [pair for pair in departures if pair["got"] == 1.0]
    assert [pair["reason"].partition(":")[0] for pair in lenient] == ["not stricter"] * 2
    assert len(departures) == 23
