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
    {"prompt": "q", "answer": "4", "completion": "答案是4。"},
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
        '{"answer": "4", "completions": "4"}', '{"answer": "4", "completions": []}', '{"answer": 5, "completion": "5"}',
        '{"answer": "4", "completion": "4\\ud800"}', '{"answer": "\\udc00", "completion": "4"}', '{"answer": "4"}', '{"answer": "4", "completion": "4", "truncated": "no"}',
    ]  # fmt: skip
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    done = finery(tmp_path, "bad.jsonl", "--reward", "answer")
    assert done.returncode == 2
    assert "bad.jsonl:1" in done.stdout
    assert "1 rows, 1 completions: 1 solved" in done.stdout
    assert done.stderr.splitlines() == [
        "bad.jsonl:2: not JSON: Expecting value at column 1",
        "bad.jsonl:3: completion: must be text, or a list of messages, found number 5",
        "bad.jsonl:4: answer: found list of 1; text is expected",
        "bad.jsonl:5: completions: must be a list of texts, found text '4'",
        "bad.jsonl:6: completions: is empty; a list of texts is expected",
        "bad.jsonl:7: answer: found number 5; text is expected",
        "bad.jsonl:8: completion: holds half a surrogate pair, which is no character",
        "bad.jsonl:9: answer: holds half a surrogate pair, which is no character",
        "bad.jsonl:10: completion: must be text, or a list of messages, found null",
        "bad.jsonl:11: truncated: must be true or false, found text 'no'",
        "bad.jsonl: 10 bad rows were not judged",
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


def test_rows_that_a_reward_cannot_judge_are_named_after_the_others_were_judged(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    good = {"task": "chain_sum", "entry": {"question": "1+1", "answer": "2", "metadata": {}}}
    metas = [
        good, 5, None, "{", {"reasoning_gym": {}}, {"reasoning_gym": {"task": "chain_sum", "entry": {}}}, {"topic": "x"},
        {"task": "no_such_task", "entry": good["entry"]}, good,
    ]  # fmt: skip
    rows = [{"reasoning_gym": meta} if isinstance(meta, dict) and "task" in meta else meta for meta in metas]
    (tmp_path / "meta.jsonl").write_text(
        "\n".join(json.dumps({"meta": meta, "completions": ["2", "3"]}) for meta in rows)
    )
    done = finery(tmp_path, "meta.jsonl", "--reward", "reasoning_gym")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines() if line.startswith("meta.jsonl:")] == [
        ["meta.jsonl:1", "reasoning_gym", "1"], ["meta.jsonl:1", "reasoning_gym", "0"],
        ["meta.jsonl:9", "reasoning_gym", "1"], ["meta.jsonl:9", "reasoning_gym", "0"],
    ]  # fmt: skip
    assert "2 rows, 4 completions" in done.stdout
    named = done.stderr.splitlines()
    assert [line.split(":")[1] for line in named] == ["2", "3", "4", "5", "6", "7", "8", " 7 bad rows were not judged"]
    assert "no_such_task" in named[6] and all(": meta: " in line for line in named[:7])


def test_a_row_without_the_column_abstains_whatever_its_neighbours_have(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"completion": "select 1"}\n')
    for kind in ("code_tests", "sql"):
        done = finery(tmp_path, "mine.jsonl", "--reward", kind)
        assert done.returncode == 0 and "1 abstained" in done.stdout, done


@pytest.mark.parametrize(
    "error", ["SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "BaseException('b')", "OSError"]
)
def test_a_function_that_raises_anything_is_named_with_the_row(tmp_path: Path, file: Path, error: str) -> None:
    (tmp_path / "own.py").write_text(
        f"def score(completions, **_):\n    if '答案是4。' in completions:\n        raise {error}\n"
        "    return [1.0] * len(completions)\n"
    )
    for more in ([], ["--json"]):
        done = finery(tmp_path, "mine.jsonl", "--reward", "{kind: python, file: own.py, function: score}", *more)
        assert done.returncode == 1
        assert f"(python own.py:score) raised {error.partition('(')[0]}" in done.stderr
        assert "at own.py:3 on sample 4 (mine.jsonl:4): completion '答案是4。' (1 of 5 samples" in done.stderr
        assert "Traceback" not in done.stderr


def test_what_a_function_gives_is_named_with_the_row(tmp_path: Path, file: Path) -> None:
    for value, said in (("'a'", "returned str 'a' for"), ("10 ** 400", "returned no finite number for"), ("float('nan')", "returned nan for")):  # fmt: skip
        (tmp_path / "own.py").write_text(f"def score(completions, **_):\n    return [1.0] + [{value}] * 4\n")
        done = finery(tmp_path, "mine.jsonl", "--reward", "{kind: python, file: own.py, function: score}")
        assert done.returncode == 1 and f"{said} sample 1 (mine.jsonl:2)" in done.stderr, done.stderr
