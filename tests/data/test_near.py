from __future__ import annotations

import hashlib
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from finery.data.clean import NearDuplicates
from finery.data.clean.near import RECALL, bands
from finery.data.dataset import Row
from finery.schemas.data import NearDuplicates as Config


def find(rows: list[Row], work: Path, **more: Any) -> dict[int, int]:
    """Index of each dropped row to that of the row it repeats."""
    near = NearDuplicates(Config.model_validate(more), work)
    for index, row in enumerate(rows):
        near.add(index, row)
    found = list(near.duplicates())
    assert [dropped for dropped, _ in found] == sorted(dropped for dropped, _ in found)
    assert not list(work.iterdir())
    return dict(found)


def pairs(jaccard: float, count: int, size: int = 200) -> list[Row]:
    """Pairs of rows (2i, 2i + 1) whose sets of words have that Jaccard index, and share nothing with other pairs.

    Two sets of s words with c in common have index c / (2s - c), so c = 2sJ / (1 + J).
    """
    common = round(2 * size * jaccard / (1 + jaccard))
    assert common / (2 * size - common) == pytest.approx(jaccard, abs=0.01)
    rows = []
    for pair in range(count):
        shared = [f"w{pair}s{i}" for i in range(common)]
        for side in "ab":
            own = shared + [f"w{pair}{side}{i}" for i in range(size - common)]
            rows.append({"prompt": "", "completion": " ".join(own)})
    return rows


def test_bands_find_the_threshold() -> None:
    assert bands(0.8, 128) == (21, 6)  # 1 - (1 - .8^6)^21 = .998; of length 7 there are 18: .985
    assert 1 - (1 - 0.8**6) ** 21 >= RECALL > 1 - (1 - 0.8**7) ** 18
    assert bands(1.0, 128) == (1, 128)
    assert bands(0.05, 128) == (128, 1)
    for threshold in (0.3, 0.5, 0.7, 0.9, 0.95):
        count, rows = bands(threshold, 128)
        assert count * rows <= 128 and 1 - (1 - threshold**rows) ** count >= RECALL


@pytest.mark.parametrize("num_perm", [128, 256])
def test_near_pairs_are_found_and_others_are_not(tmp_path: Path, num_perm: int) -> None:
    """At threshold .8 and 128 hashes the estimate's deviation is .044 at .5 and .019 at .95: 7 deviations away."""
    found = find(pairs(0.95, 200), tmp_path, ngram=1, num_perm=num_perm)
    assert found == {2 * i + 1: 2 * i for i in range(200)}
    assert find(pairs(0.5, 200), tmp_path, ngram=1, num_perm=num_perm) == {}


def test_at_the_threshold_itself_about_half_are_found(tmp_path: Path) -> None:
    """The estimate needs 103 of 128 equal hashes of a binomial with mean 102.4: probability .50."""
    found = find(pairs(0.8, 300), tmp_path, ngram=1)
    assert all(kept == dropped - 1 for dropped, kept in found.items())
    assert 0.4 < len(found) / 300 < 0.6
    # of a lower threshold all, of a higher one none
    assert len(find(pairs(0.8, 100), tmp_path, ngram=1, threshold=0.6)) == 100
    assert len(find(pairs(0.8, 100), tmp_path, ngram=1, threshold=0.95)) == 0


def test_the_first_of_a_group_is_kept_and_groups_are_connected(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(220)]
    a, b, c = (" ".join(words[start : start + 200]) for start in (0, 10, 20))  # a-b and b-c .905, a-c .818
    rows = [{"prompt": "p", "completion": text} for text in ("other thing", c, "x y z", a, b)]
    assert find(rows, tmp_path, ngram=1, threshold=0.86, num_perm=512) == {3: 1, 4: 1}
    assert find([rows[1], rows[3]], tmp_path, ngram=1, threshold=0.86, num_perm=512) == {}


def test_indices_are_the_callers_and_need_not_be_consecutive(tmp_path: Path) -> None:
    near = NearDuplicates(Config(), tmp_path)
    for index in (5, 70, 10**12):
        near.add(index, {"prompt": "the same words are here again", "answer": "1"})
    assert list(near.duplicates()) == [(70, 5), (10**12, 5)]
    assert list(NearDuplicates(Config(), tmp_path).duplicates()) == []


def test_what_is_compared(tmp_path: Path) -> None:
    def row(prompt: str, completion: str, system: str = "You are a helpful and harmless assistant") -> Row:
        turns = [("system", system), ("user", prompt), ("assistant", completion)]
        return {"messages": [{"role": role, "content": content} for role, content in turns]}

    question = "Please write a short poem about the sea and the wind"
    rows = [
        row(question, "The sea is blue and the wind is loud tonight"),
        row(question.upper() + "!", "Waves roll over stones while gulls cry far above them", system="x"),
        row("Name one prime", "The sea is blue and the wind is loud tonight"),
    ]
    assert find(rows, tmp_path, compare="row") == {}
    assert find(rows, tmp_path, compare="prompt") == {1: 0}
    assert find([rows[0], row(question, "The sea is blue, and the wind is loud tonight!", system="y z")], tmp_path) == {
        1: 0
    }


def test_short_texts_and_texts_without_words(tmp_path: Path) -> None:
    texts = ["yes", "no", "Yes!", "17+8", "17-8", "...", "?!", "...", "👍", ""]
    found = find([{"prompt": "", "completion": text} for text in texts], tmp_path)
    assert found == {2: 0, 7: 5}


def test_chinese_texts(tmp_path: Path) -> None:
    text = "今天我们学习如何计算两个数的最大公约数，首先用较大的数除以较小的数，然后用余数继续除，直到余数为零。" * 2
    other = "北京是中国的首都，拥有悠久的历史和丰富的文化遗产，每年吸引大量游客前来参观故宫和长城。"
    rows = [
        {"prompt": "问", "completion": one} for one in (text, other, text.replace("首先", "第一步"), other + "欢迎！")
    ]
    assert find(rows, tmp_path) == {2: 0, 3: 1}


def test_rows_of_a_template_are_not_one(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [
        {
            "prompt": f"What is {rng.randrange(10**6)} plus {rng.randrange(10**6)}?",
            "completion": str(rng.randrange(10**6)),
        }
        for _ in range(300)
    ]
    assert find(rows, tmp_path) == {}


def mixed(count: int) -> list[Row]:
    rng = random.Random(7)
    rows: list[Row] = []
    for _ in range(count):
        if rows and rng.random() < 0.2:
            words = rng.choice(rows)["completion"].split()
            words[rng.randrange(len(words))] = "changed"
        else:
            words = [f"w{rng.randrange(5000)}" for _ in range(60)]
        rows.append({"prompt": "p", "completion": " ".join(words)})
    return rows


def test_the_same_rows_give_the_same_answer_however_they_are_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mixed(1500)
    first = find(rows, tmp_path)
    assert len(first) > 200
    assert find(rows, tmp_path) == first
    monkeypatch.setattr("finery.data.clean.near._BUFFER", 128 * 100)
    assert find(rows, tmp_path) == first
    digest = hashlib.sha256(repr(sorted(first.items())).encode()).hexdigest()
    assert (
        digest == "06b107824b3dd80762e92a3616540bde6bcc369ce3ba6763258cec040d60d322"
    )  # on every machine and every day


def test_all_pairs_that_are_near_are_joined(tmp_path: Path) -> None:
    """Against every pair compared one by one, on the signatures themselves."""
    import numpy as np

    rows = mixed(400)
    near = NearDuplicates(Config(), tmp_path)
    signatures = np.array([near._signature(row).copy() for row in rows])
    root = list(range(len(rows)))
    for later in range(len(rows)):
        for earlier in np.flatnonzero((signatures[:later] == signatures[later]).mean(axis=1) >= 0.8):
            old, new = sorted((root[later], root[int(earlier)]), reverse=True)
            root = [new if one == old else one for one in root]
    assert find(rows, tmp_path) == {row: first for row, first in enumerate(root) if row != first}


def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finery.data.clean.near._BUFFER", 16 * 256)

    def peak(count: int) -> int:
        near = NearDuplicates(Config(num_perm=16, ngram=1), tmp_path)
        near.add(0, {"prompt": "warm", "completion": "up"})
        tracemalloc.start()
        for index in range(1, count):
            near.add(index, {"prompt": "p", "completion": f"a{index // 2} b{index // 2} c{index // 2}"})
        assert sum(1 for _ in near.duplicates()) >= count // 2 - 1
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(500)
    few, many = peak(600), peak(3600)
    assert many - few < 3000 * 16, "3000 rows more took more than 16 bytes each"


def test_leavings_of_an_earlier_try_are_removed(tmp_path: Path) -> None:
    stale = NearDuplicates(Config(), tmp_path)
    stale.add(0, {"prompt": "one and the same", "answer": "1"})
    stale._flush()
    assert find([{"prompt": "one and the same", "answer": "1"}], tmp_path) == {}
