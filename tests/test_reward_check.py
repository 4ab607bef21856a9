"""`finery reward check` on files a user would have, run as a user runs it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finery.data.dataset import write_dataset
from finery.errors import InputError
from finery.reward_check import check, parse_reward

ROWS: list[dict[str, Any]] = [
    {"prompt": "17+8", "answer": "25", "completion": "17+8=25\n#### 25"},
    {"prompt": "1 of 3", "answer": "1/3", "completions": ["\\boxed{0.333}", "The answer is 1/3."]},
    {"prompt": "q", "answer": "see figure", "completion": "5"},
    {"prompt": "q", "answer": 4, "completion": "答案是4。"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS), encoding="utf-8")
    return path


def finery(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "finery", "reward", "check", *arguments],
        cwd=folder, capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip


def test_each_row_is_scored_and_explained(file: Path) -> None:
    done = finery(file.parent, "mine.jsonl", "--reward", "answer")
    assert (done.returncode, done.stderr) == (0, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "mine.jsonl:1 answer 1 solved '25' after #### equals '25', as exact numbers",
        "mine.jsonl:2 answer 0 unsolved '0.333' in \\boxed{} is not '1/3', as exact numbers",
        "mine.jsonl:2 answer 1 solved '1/3' after `answer is` equals '1/3', as exact numbers",
        "mine.jsonl:3 answer - abstains abstains: the row's answer is words (see), not mathematics; "
        "compare: text compares words",
        "mine.jsonl:4 answer 1 solved '4' after `答案是` equals '4', as exact numbers",
        "",
        "4 rows, 5 completions: 3 solved, 1 unsolved, 1 abstained",
        "answer: mean 0.75 over 4, 1 abstained",
    ]


def test_several_rewards_the_first_is_the_verifier_unless_one_is_marked(file: Path) -> None:
    def solved(*rewards: str) -> list[bool | None]:
        document = json.loads("\n".join(check(file, rewards, as_json=True)))
        return [row["solved"] for row in document["rows"]]

    assert solved("answer", "{kind: regex, pattern: '####'}") == [True, False, True, None, True]
    assert solved("answer", "{kind: regex, pattern: '####', verifier: true}") == [True, False, False, False, False]
    with pytest.raises(InputError, match="mark one reward"):
        list(check(file, ["{kind: answer, verifier: true}"] * 2))


def test_json_holds_every_score_the_reasons_and_the_totals(file: Path) -> None:
    done = finery(file.parent, "mine.jsonl", "--reward", "answer", "--reward", "{kind: steps, weight: 0.5}", "--json")
    document = json.loads(done.stdout)
    assert document["rows"][0] == {
        "place": "mine.jsonl:1",
        "scores": {"answer": 1.0, "steps": None},
        "total": 1.0,
        "solved": True,
        "why": {
            "answer": "'25' after #### equals '25', as exact numbers",
            "steps": "abstains: the row's solution has no step",
        },
    }
    assert document["totals"] == {
        "rows": 4, "completions": 5, "solved": 3, "unsolved": 1, "abstained": 1,
        "means": {"answer": 0.75, "steps": None}, "abstentions": {"answer": 1, "steps": 5},
    }  # fmt: skip
    assert document["bad_rows"] == []


def test_bad_rows_are_named_after_the_good_ones_are_judged(tmp_path: Path) -> None:
    lines = [
        json.dumps(ROWS[0]), "not json", '{"answer": "4", "completion": 5}', '{"answer": ["4"], "completion": "4"}',
        '{"answer": "4", "completions": "4"}', '{"answer": "4"}', '{"answer": "4", "completion": "4", "truncated": "no"}',
    ]  # fmt: skip
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    done = finery(tmp_path, "bad.jsonl", "--reward", "answer")
    assert done.returncode == 2
    assert "bad.jsonl:1" in done.stdout
    assert "1 rows, 1 completions: 1 solved" in done.stdout
    assert done.stderr.splitlines() == [
        "bad.jsonl:2: not JSON: Expecting value at column 1",
        "bad.jsonl:3: completion: must be text, or a list of messages, found number 5",
        "bad.jsonl:4: answer: must be text, found list of 1",
        "bad.jsonl:5: completions: must be a list of texts, found text '4'",
        "bad.jsonl:6: completion: must be text, or a list of messages, found null",
        "bad.jsonl:7: truncated: must be true or false, found text 'no'",
        "bad.jsonl: 6 bad rows were not judged",
    ]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("answr", "--reward answr: kind: unknown kind answr; did you mean answer?"),
        ("{kind: answer, extrat: boxed}", "extrat: unknown key; did you mean extract?"),
        ("{kind: answer, extract: box}", "extract: must be one of"),
        ("{kind: answer", "--reward {kind: answer: "),
        ("length", "max_tokens: is missing"),
        ("", "--reward"),
        ("{kind: json_schema, file: gone.json}", "json_schema: file: gone.json: no such file or folder"),
        ("{kind: regex, pattern: '('}", "rewards.0.pattern: is not a regular expression"),
    ],
)
def test_a_reward_that_is_not_one_is_bad_input(file: Path, reward: str, message: str) -> None:
    done = finery(file.parent, "mine.jsonl", "--reward", reward)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_reward_is_a_kind_or_an_entry_of_yaml() -> None:
    assert parse_reward("answer").kind == "answer"
    assert parse_reward("kind: answer\nextract: boxed") == parse_reward("{kind: answer, extract: boxed}")


def test_a_file_that_is_not_there_or_holds_nothing_is_bad_input(tmp_path: Path) -> None:
    assert "gone.jsonl: no such file" in finery(tmp_path, "gone.jsonl", "--reward", "answer").stderr
    (tmp_path / "empty.jsonl").write_text("")
    done = finery(tmp_path, "empty.jsonl", "--reward", "answer")
    assert (done.returncode, done.stderr.strip()) == (2, "empty.jsonl: holds no rows")


def test_other_files_and_data_sets_of_finerys_are_read(tmp_path: Path, file: Path) -> None:
    def scores(path: Path) -> list[float | None]:
        return [row["scores"]["answer"] for row in json.loads("\n".join(check(path, ["answer"], as_json=True)))["rows"]]

    with gzip.open(tmp_path / "rows.jsonl.gz", "wt", encoding="utf-8") as packed:
        packed.write(file.read_text(encoding="utf-8"))
    assert scores(tmp_path / "rows.jsonl.gz") == [1.0, 0.0, 1.0, None, 1.0]
    (tmp_path / "rows.csv").write_text("prompt,answer,completion\nq,4,#### 4\nq,4,#### 5\n")
    assert scores(tmp_path / "rows.csv") == [1.0, 0.0]
    write_dataset([{"prompt": "q", "answer": "4", "completion": "#### 4"}], tmp_path / "set")
    assert scores(tmp_path / "set") == [1.0]
    chat = {
        "prompt": [{"role": "user", "content": "q"}],
        "answer": "4",
        "completion": [{"role": "assistant", "content": "4"}],
    }
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat))
    assert scores(tmp_path / "chat.jsonl") == [1.0]


def test_the_solution_of_a_row_with_several_completions_is_its_completion(tmp_path: Path) -> None:
    row = {"prompt": "q", "completion": "17+8=25, 25-3=22", "completions": ["17+8=25", "17+8=25, 25-3=22"]}
    (tmp_path / "steps.jsonl").write_text(json.dumps(row))
    document = json.loads("\n".join(check(tmp_path / "steps.jsonl", ["steps"], as_json=True)))
    assert [each["scores"]["steps"] for each in document["rows"]] == [0.5, 1.0]


def test_rewards_of_tokens_need_them(tmp_path: Path, file: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    length = "{kind: length, max_tokens: 4, cache: 2}"
    with pytest.raises(InputError, match="give --tokenizer FOLDER, or rows with completion_ids"):
        list(check(file, [length]))
    with pytest.raises(InputError, match=r"holds no tokenizer\.json"):
        list(check(file, [length], tokenizer=tmp_path))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    document = json.loads("\n".join(check(file, [length], tokenizer=tmp_path, as_json=True)))
    assert [row["scores"]["length"] for row in document["rows"]] == [-0.5, 0.0, -1.0, 0.0, 0.0]
    (tmp_path / "ids.jsonl").write_text(json.dumps({"completion": "a", "completion_ids": [1, 2, 3]}))
    document = json.loads("\n".join(check(tmp_path / "ids.jsonl", [length], as_json=True)))
    assert document["rows"][0]["scores"] == {"length": -0.5}
