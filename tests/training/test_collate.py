"""Which rows a step takes, and how they are padded."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np

from finery.training.collate import Feed, Passes, pad, permutation, split_by_length, weighted
from finery.training.encode import Encoded


def _data(lengths: list[int], name: str) -> Encoded:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.int32)
    return Encoded(ids, ids.copy(), offsets, [f"{name}{i}" for i in range(len(lengths))])


def _feed(seed: int = 3) -> Feed:
    own, replay = _data([3, 4, 5, 6, 7, 8, 9], "own"), _data([2, 3, 4], "replay")
    return Feed(own, 3, seed, replay=replay, replay_batch_size=2)


def test_an_epoch_takes_every_own_row_once_and_replay_never_ends() -> None:
    feed = _feed()
    assert len(feed) == 3
    replayed: list[int] = []
    orders = []
    for epoch in range(4):
        feed.set_epoch(epoch)
        rows = [feed.rows(index) for index in range(len(feed))]
        own = [row for batch, _ in rows for row in batch]
        assert sorted(own) == list(range(7))
        assert [len(batch) for batch, _ in rows] == [3, 3, 1]
        orders.append(own)
        replayed += [row for _, batch in rows for row in batch]
    assert len({tuple(order) for order in orders}) > 1
    for start in range(0, 24, 3):
        assert sorted(replayed[start : start + 3]) == [0, 1, 2]


def test_a_micro_batch_depends_on_seed_epoch_and_place_alone() -> None:
    walked, jumped = _feed(), _feed()
    seen = []
    for epoch in range(3):
        walked.set_epoch(epoch)
        seen = [walked.rows(index) for index in range(3)]
    permutation.cache_clear()
    jumped.set_epoch(2)
    assert jumped.rows(2) == seen[2]
    assert _feed(seed=4).rows(0) != _feed(seed=3).rows(0)


def test_permutations_are_pinned() -> None:
    assert permutation(6, 7, "own", 0).tolist() == [5, 1, 4, 3, 2, 0]


def test_weighted_rows_are_drawn_with_replacement_as_often_as_their_weights_say() -> None:
    data = dataclasses.replace(_data([2] * 4, "w"), weights=np.array([1.0, 2.0, 3.0, 4.0]))
    feed = Feed(data, 3, 5, replay=data, replay_batch_size=2)
    assert len(feed) == 2
    drawn, replayed = [], []
    for epoch in range(2000):
        feed.set_epoch(epoch)
        rows = [feed.rows(index) for index in range(2)]
        assert [len(own) for own, _ in rows] == [3, 1]
        drawn += [row for own, _ in rows for row in own]
        replayed += [row for _, replay in rows for row in replay]
    for rows in (drawn, replayed):
        shares = np.bincount(rows, minlength=4) / len(rows)
        # five standard errors of a share of 8000 draws
        assert np.abs(shares - [0.1, 0.2, 0.3, 0.4]).max() < 0.028
    assert drawn != replayed


def test_weighted_draws_are_pinned_and_depend_on_seed_stream_and_pass_alone() -> None:
    weights = np.array([1.0, 1.0, 8.0])
    assert weighted(weights, 7, "own", 0).tolist() == [2, 2, 0]
    data = dataclasses.replace(_data([2, 2, 2], "w"), weights=weights)
    walked, jumped = Passes(data, 7, "own"), Passes(data, 7, "own")
    passes = [walked.rows(index).tolist() for index in range(6)]
    assert jumped.rows(4).tolist() == passes[4]
    assert len({tuple(rows) for rows in passes}) > 1


def test_an_order_is_kept_in_every_pass() -> None:
    data = dataclasses.replace(_data([2] * 5, "o"), ordered=True)
    feed = Feed(data, 2, 5, replay=data, replay_batch_size=3)
    for epoch in (0, 3):
        feed.set_epoch(epoch)
        assert [feed.rows(index)[0] for index in range(3)] == [[0, 1], [2, 3], [4]]
    feed.set_epoch(0)
    assert [row for index in range(3) for row in feed.rows(index)[1]] == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_sub_batches_hold_the_rows_padded_no_further_than_their_longest() -> None:
    feed = _feed()
    batch = feed[0]
    own, _ = feed.rows(0)
    rows = sorted(length for part in batch["own"] for length in part["attention_mask"].sum(1).tolist())
    assert rows == sorted(feed.own.lengths[own].tolist())
    for part in batch["own"]:
        assert part["input_ids"].shape == part["labels"].shape == part["attention_mask"].shape
        assert part["attention_mask"].sum(1).max() == part["input_ids"].shape[1]


def test_padding_is_no_target() -> None:
    data = _data([2, 4], "x")
    batch = pad([data.row(0), data.row(1)], pad_id=9)
    assert batch["input_ids"].tolist() == [[0, 1, 9, 9], [2, 3, 4, 5]]
    assert batch["labels"].tolist() == [[0, 1, -100, -100], [2, 3, 4, 5]]


def _cost(lengths: list[int], groups: list[list[int]], cost: int) -> int:
    return sum(len(group) * max(lengths[place] for place in group) + cost for group in groups)


def test_splitting_by_length_is_optimal() -> None:
    rng = random.Random(0)
    for _ in range(60):
        lengths = [rng.randrange(1, 30) for _ in range(rng.randrange(1, 8))]
        cost = rng.randrange(0, 25)
        groups = split_by_length(lengths, cost)
        assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
        order = sorted(range(len(lengths)), key=lambda place: lengths[place])
        cuts = itertools.chain.from_iterable(
            itertools.combinations(range(1, len(order)), count) for count in range(len(order))
        )
        best = min(
            _cost(lengths, [order[a:b] for a, b in itertools.pairwise([0, *cut, len(order)])], cost) for cut in cuts
        )
        assert _cost(lengths, groups, cost) == best
