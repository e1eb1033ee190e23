"""Kernels of the comparison against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels.clocks import best_step, group_medians, median_of, select, theil_sen_slope
from rankdiff.kernels.heap import drop_earliest, push
from rankdiff.kernels.layers import uppermost
from rankdiff.kernels.matching import align_in_time, equal_shares, shift_scores
from rankdiff.kernels.permutation import many_sum_exceedances, max_sum_exceedances
from rankdiff.kernels.replay import beyond_others, instance_medians, place_in_step, segments
from rankdiff.kernels.shares import row_spans, skew_shares
from rankdiff.kernels.sweep import swept_shares
from rankdiff.kernels.votes import votes
from tests.oracles import clocks as naive_clocks
from tests.oracles import heap as naive_heap
from tests.oracles import layers as naive_layers
from tests.oracles import matching as naive_matching
from tests.oracles import permutation as naive_permutation
from tests.oracles import replay as naive_replay
from tests.oracles import shares as naive_shares

small = st.integers(0, 12)


def i64(values):
    return np.array(values, np.int64)


@given(st.data())
def test_skew_shares_are_shapley_values(data):
    n = data.draw(st.integers(2, 4))
    rows = data.draw(st.lists(st.lists(small, min_size=n, max_size=n), min_size=1, max_size=3))
    step = data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)))
    # Whatever order the members are said to come in, and with some of them moved.
    order = data.draw(st.lists(st.permutations(range(n)), min_size=len(rows), max_size=len(rows)))
    earlier = data.draw(st.lists(small, min_size=n, max_size=n))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    got = skew_shares(i64(rows), i64(earlier), np.array(order, np.int16), np.array(chosen), i64(step), 2)
    moved = [[a - by for a, by in zip(row, earlier, strict=True)] for row in rows]
    want = naive_shares.skew_shares(
        [row for row, on in zip(moved, chosen, strict=True) if on],
        [k for k, on in zip(step, chosen, strict=True) if on],
        2,
    )
    assert got == pytest.approx(np.array(want or [[0.0] * 2] * n, float))
    assert got.sum() == pytest.approx(sum(max(r) - min(r) for r, on in zip(moved, chosen, strict=True) if on))
    first, last = row_spans(i64(rows), i64(earlier))
    assert first.tolist() == [min(row) for row in moved]
    assert last.tolist() == [max(row) for row in moved]


def plain_shares(rows, step, n_steps):
    """Shares of all instances as they are."""
    rows = np.atleast_2d(i64(rows))
    order = np.argsort(rows, axis=1).astype(np.int16)
    return skew_shares(
        rows, np.zeros(rows.shape[1], np.int64), order, np.ones(rows.shape[0], np.bool_), i64(step), n_steps
    )


@st.composite
def open_instances(draw):
    """Instances of a few communicators over four ranks, arrivals in program order on every rank."""
    comms = draw(st.lists(st.sets(st.integers(0, 3), min_size=2, max_size=4), min_size=1, max_size=3))
    which = draw(st.lists(st.integers(0, len(comms) - 1), min_size=1, max_size=5))
    clock = [0, 0, 0, 0]
    out = []
    for n, c in enumerate(which):
        members = []
        for r in sorted(comms[c]):
            clock[r] += draw(small)
            members.append((r, clock[r], c))
        finish = max(clock[r] for r in comms[c]) if draw(st.booleans()) else 0
        for r in comms[c]:
            clock[r] = max(clock[r], finish)
        out.append((n % 2, members))
    return out


def flattened(instances):
    first = np.cumsum([0] + [len(m) for _, m in instances])
    flat = [x for _, m in instances for x in m]
    return (
        i64(first),
        i64([r for r, _, _ in flat]),
        i64([a for _, a, _ in flat]),
        i64([s for _, _, s in flat]),
        i64([k for k, _ in instances]),
        np.argsort(i64([a for _, a, _ in flat]), kind="stable"),
    )


@given(open_instances(), st.sampled_from([4, 8, 16, 24, 40]))
def test_swept_shares_agree_with_the_twin_and_sum_to_open_time(instances, ranks):
    # Among few ranks all are looked at, among many those that are listed, and in between lists get too long.
    got = swept_shares(*flattened(instances), ranks, 2)
    want = np.array(naive_shares.swept_shares(instances, 4, 2), float)
    assert got[:4] == pytest.approx(want, abs=1e-6)
    assert not got[4:].any()
    spans = [(min(a for _, a, _ in m), max(a for _, a, _ in m)) for _, m in instances]
    open_time = len({t for a, b in spans for t in range(a, b)})
    assert got.sum() == pytest.approx(open_time)


def test_swept_shares_of_one_communicator_are_shapley_values():
    rows = [[0, 5, 2, 9], [20, 20, 31, 24]]
    instances = [
        (0, [(r, a, 0) for r, a in enumerate(rows[0])]),
        (1, [(r, a, 0) for r, a in enumerate(rows[1])]),
    ]
    got = swept_shares(*flattened(instances), 4, 2)
    assert got == pytest.approx(plain_shares(rows, [0, 1], 2))


def test_delay_is_passed_on_to_who_held_the_late_rank():
    # The worked example of the method: pairs TP (0, 1) and DP (0, 2); rank 1 is late in TP, which makes rank 0
    # late in DP although rank 0 did nothing wrong.
    ms = 1_000_000
    instances = [(0, [(0, 0, 0), (1, 20 * ms, 0)]), (0, [(0, 26 * ms, 1), (2, 6 * ms, 1)])]
    got = swept_shares(*flattened(instances), 3, 1)
    assert got[:, 0].tolist() == [0.0, 26.0 * ms, 0.0]


def test_shares_do_not_depend_on_how_holders_are_kept():
    # Tensor-parallel groups of four and, across them, groups of all that have the same place in theirs; the same job
    # with its ranks far apart among more of them, so that lists of holders are short against all.
    draws = np.random.default_rng(5)
    groups = [np.arange(4 * g, 4 * g + 4) for g in range(3)]
    across = [np.arange(p, 12, 4) for p in range(4)]
    free = np.zeros(12, np.int64)
    instances = []
    for n in range(60):
        for members in across if n % 4 == 3 else groups:
            arrive = free[members] + draws.integers(0, 90_000_000, members.size)
            instances.append(
                (n // 30, [(int(r), int(a), int(n % 4 == 3)) for r, a in zip(members, arrive, strict=True)])
            )
            free[members] = arrive.max() + draws.integers(1, 9_000_000)
    want = np.array(naive_shares.swept_shares(instances, 12, 2), float)
    for apart in (1, 3, 12):
        moved = [(k, [(r * apart, a, s) for r, a, s in m]) for k, m in instances]
        got = swept_shares(*flattened(moved), 12 * apart, 2)
        assert got[::apart] == pytest.approx(want, rel=1e-9)


@given(st.lists(st.one_of(st.none(), small), max_size=60))
def test_a_heap_gives_the_earliest(script):
    when, what, size = np.empty(60), np.empty(60, np.int64), 0
    given_, taken = [], []
    for at in script:
        if at is not None:
            given_.append(at)
            size = push(when, what, size, float(at), len(given_) - 1)
        elif size:
            taken.append(when[0])
            assert given_[what[0]] == when[0]
            size = drop_earliest(when, what, size)
    assert taken == naive_heap.events(script)
    assert size == len(given_) - len(taken)
    # Each that was put in is still there once.
    assert len(set(what[:size].tolist())) == size


def test_shares_of_nothing():
    assert plain_shares(np.empty((0, 3), np.int64), [], 2).tolist() == [[0, 0]] * 3
    assert swept_shares(i64([0]), i64([]), i64([]), i64([]), i64([]), i64([]), 2, 1).tolist() == [[0], [0]]


sequence = st.lists(
    st.tuples(st.integers(-1, 1), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7
)

long_sequence = st.lists(
    st.tuples(st.just(0), st.integers(1, 9), st.integers(1, 9)), min_size=16, max_size=24
)


def timeline(steps, scale=1_000_000):
    """(tokens, starts, ends) from (token, gap, duration) triples."""
    now, out = 0, []
    for token, gap, length in steps:
        start = now + gap * scale
        now = start + length * scale
        out.append((token, start, now))
    return tuple(i64(x) for x in zip(*out, strict=True))


@given(sequence | long_sequence, sequence | long_sequence)
def test_shift_scores_agree_with_the_twin(a, b):
    a, b = timeline(a), timeline(b)
    low, high = 1 - b[0].size, a[0].size - 1
    shifts = np.arange(low, high + 1)
    shift, score, offset = shift_scores(np.stack(a), np.stack(b), shifts, 400, 99, 0.02)
    want = naive_matching.shift_scores(*(x.tolist() for x in (*a, *b)), low, high)
    assert shift.tolist() == [w[0] for w in want]
    assert score == pytest.approx([w[1] for w in want])
    assert offset == pytest.approx([w[2] for w in want])


def test_shift_scores_stop_early_and_keep_the_order():
    a = np.stack(timeline([(0, 1, 2), (0, 3, 1), (0, 2, 2), (0, 5, 1)]))
    every = shift_scores(a, a, i64([-1, 0, 1, 2]), 400, 9, 1.0)
    assert every[0].tolist() == [-1, 0, 1, 2]
    assert every[1][1] == 0.0
    some = shift_scores(a, a, i64([2, 0, 1]), 400, 2, 1.0)
    assert some[0].tolist() == [2, 0]
    assert some[1].tolist() == [every[1][3], 0.0]


@given(sequence, sequence, st.integers(1, 5))
def test_alignment_costs_what_the_best_one_costs(a, b, gap):
    ta, _, ea = timeline(a, 1)
    tb, _, eb = timeline(b, 1)
    partner = align_in_time(ta, ea, tb, eb, float(gap), 10)
    hit = np.flatnonzero(partner >= 0)
    assert np.all(np.diff(partner[hit]) > 0)
    assert all(naive_matching.same(x, y) for x, y in zip(ta[partner[hit]], tb[hit], strict=True))
    cost = np.abs(ea[partner[hit]] - eb[hit]).sum() + gap * (ta.size + tb.size - 2 * hit.size)
    assert cost == naive_matching.alignment_cost(ta.tolist(), ea.tolist(), tb.tolist(), eb.tolist(), gap)


def test_alignment_crosses_what_the_other_side_does_not_have():
    # A window that begins later, and a hole longer than the band is wide.
    token, _, end = timeline([(0, 1, 1)] * 100, 1)
    kept = np.r_[40:60, 85:100]
    partner = align_in_time(token, end, token[kept], end[kept], 5.0, 4)
    assert partner.tolist() == kept.tolist()
    back = align_in_time(token[kept], end[kept], token, end, 5.0, 4)
    assert np.flatnonzero(back >= 0).tolist() == kept.tolist()
    assert back[kept].tolist() == list(range(kept.size))


def test_alignment_of_nothing():
    none = i64([])
    assert align_in_time(none, none, i64([1]), i64([5]), 1.0, 4).tolist() == [-1]
    assert align_in_time(i64([1]), i64([5]), none, none, 1.0, 4).size == 0


@given(st.lists(st.tuples(small, st.integers(-9, 9)), min_size=0, max_size=8))
def test_theil_sen_agrees_with_the_twin(points):
    t = np.array([p[0] for p in points], float)
    d = np.array([p[1] for p in points], float)
    assert theil_sen_slope(t, d) == pytest.approx(naive_clocks.theil_sen_slope(t.tolist(), d.tolist()))


@given(st.lists(st.integers(-20, 20), min_size=0, max_size=12), st.integers(1, 3))
def test_best_step_agrees_with_the_twin(d, margin):
    at, size = best_step(np.array(d, float), margin)
    want_at, want_size = naive_clocks.best_step(d, margin)
    assert (at == -1) == (want_at == -1)
    if at >= 0:
        # Several splits may be equally good; the kernel's must be one of them.
        def error(i):
            return sum((x - np.mean(p)) ** 2 for p in (d[:i], d[i:]) for x in p)

        assert error(at) == pytest.approx(error(want_at), abs=1e-6)
        assert size == pytest.approx(np.median(d[at:]) - np.median(d[:at]))
    else:
        assert (at, size) == (want_at, want_size)


@pytest.mark.parametrize(
    "delta",
    [
        [[0, 5], [1, 4], [0, 7], [2, 3]],
        [[0, 0, 9], [1, 0, 5], [3, 2, 4]],
        [[1, 2, 3], [3, 1, 2], [2, 3, 1]],
    ],
)
def test_permutation_test_agrees_with_all_arrangements(delta):
    observed = max(map(sum, zip(*delta, strict=True)))
    draws = 3_000
    reached, done = max_sum_exceedances(np.array(delta, float), float(observed), draws, 7, draws + 1)
    want = naive_permutation.exact_p(delta, observed)
    assert done == draws
    # Five standard errors of a binomial share.
    assert abs(reached / draws - want) <= 5 * np.sqrt(want * (1 - want) / draws) + 1e-9


def test_permutation_test_is_repeatable_and_stops_early():
    delta = np.arange(12.0).reshape(4, 3)
    once = max_sum_exceedances(delta, 18.0, 200, 3, 201)
    assert once == max_sum_exceedances(delta, 18.0, 200, 3, 201)
    reached, done = max_sum_exceedances(delta, 0.0, 200, 3, 10)
    assert (reached, done) == (10, 10)


@given(st.data())
def test_draws_that_a_bound_decides_are_those_made_in_full(data):
    n, k = data.draw(st.integers(3, 7)), data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.lists(small, min_size=n, max_size=n), min_size=k, max_size=k))
    top = data.draw(st.integers(1, n - 1))
    ranked = np.sort(np.array(rows, float), axis=1)[:, ::-1]
    observed = float(data.draw(st.integers(0, 40)))
    stop = data.draw(st.integers(1, 31))
    got = many_sum_exceedances(np.ascontiguousarray(ranked), top, observed, 30, 5, stop)
    assert got == naive_permutation.exceedances(ranked.tolist(), top, observed, 30, 5, stop)


@given(st.lists(st.lists(small, min_size=3, max_size=3), min_size=2, max_size=3), st.integers(1, 2))
def test_partly_made_draws_agree_with_all_arrangements(delta, top):
    observed = max(map(sum, zip(*delta, strict=True)))
    ranked = np.ascontiguousarray(np.sort(np.array(delta, float), axis=1)[:, ::-1])
    draws = 3_000
    reached, done = many_sum_exceedances(ranked, top, float(observed), draws, 7, draws + 1)
    want = naive_permutation.exact_p(delta, observed)
    assert done == draws
    assert abs(reached / draws - want) <= 5 * np.sqrt(want * (1 - want) / draws) + 1e-9


@given(st.lists(small, min_size=1, max_size=9), st.data())
def test_selection_is_what_sorting_finds(values, data):
    k = data.draw(st.integers(0, len(values) - 1))
    x = np.array(values, float)
    assert select(x, k) == sorted(values)[k]
    assert sorted(x.tolist()) == sorted(values)
    assert max(x[:k], default=0) <= x[k]
    assert median_of(np.array(values, float)) == np.median(values)


@given(st.data())
def test_medians_of_groups(data):
    group = data.draw(st.permutations([0, 0, 0, 1, 2, 2]))
    m = data.draw(st.sampled_from([0, 1, 3, 65]))
    x = np.random.default_rng(m).integers(0, 9, (6, m))
    got = group_medians(x, i64(group), 3)
    assert got.shape == (m, 3)
    for g in range(3):
        assert got[:, g].tolist() == np.median(x[i64(group) == g], axis=0).tolist()


@given(st.lists(st.lists(st.integers(-1, 2), min_size=4, max_size=4), max_size=4))
def test_votes_are_the_commonest_known_values(rows):
    value, known, count = votes(np.array(rows, np.int64).reshape(-1, 4))
    for row, v, k, c in zip(rows, value.tolist(), known.tolist(), count.tolist(), strict=True):
        told = [x for x in row if x >= 0]
        best = min(told, key=lambda x: (-told.count(x), x), default=-1)
        assert (v, k, c) == (best, len(told), told.count(best))


@given(st.lists(st.integers(-1, 2), max_size=5), st.lists(st.integers(-1, 2), max_size=5))
def test_shares_of_equal_elements(a, b):
    shifts = list(range(-4, 5))
    got = equal_shares(i64(a), i64(b), i64(shifts))
    for k, share in zip(shifts, got.tolist(), strict=True):
        pairs = [(a[j + k], b[j]) for j in range(len(b)) if 0 <= j + k < len(a)]
        both = [x == y for x, y in pairs if x >= 0 and y >= 0]
        assert share == pytest.approx(sum(both) / len(both) if both else np.nan, nan_ok=True)


@given(st.data())
def test_every_moment_goes_to_the_uppermost_layer(data):
    spans = st.lists(st.tuples(st.integers(-3, 14), st.integers(-2, 6)), max_size=4)
    layers = [
        sorted((a, a + length) for a, length in data.draw(spans)) for _ in range(data.draw(st.integers(1, 3)))
    ]
    edge = sorted(data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=4)))
    flat = [x for layer in layers for x in layer]
    first = np.cumsum([0, *map(len, layers)])
    got = uppermost(i64(edge), i64([a for a, _ in flat]), i64([b for _, b in flat]), i64(first))
    assert got.tolist() == naive_layers.uppermost(edge, layers)
    assert got.sum(axis=0).tolist() == np.diff(edge).tolist()


@st.composite
def played(draw):
    """Instances of some of three rows each, in order, with times and values."""
    out = []
    for _ in range(draw(st.integers(1, 6))):
        members = draw(st.permutations(range(3)))[: draw(st.integers(1, 3))]
        out.append([(r, draw(small), draw(small), draw(st.booleans())) for r in members])
    return out


@given(played(), st.data())
def test_kernels_of_the_replay_agree_with_their_twins(instances, data):
    flat = [x for members in instances for x in members]
    first = i64(np.cumsum([0, *map(len, instances)]))
    row = np.array([r for r, *_ in flat], np.int32)
    start, end = i64([a for _, a, _, _ in flat]), i64([a + b for _, a, b, _ in flat])
    chosen, value = np.array([c for *_, c in flat], np.bool_), i64([b for _, _, b, _ in flat])
    anchor, segment = segments(first, row, start, end, 3)
    assert list(zip(anchor.tolist(), segment.tolist(), strict=True)) == naive_replay.segments(instances)
    step = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(flat), max_size=len(flat))), np.int32)
    keys = list(zip(row.tolist(), step.tolist(), strict=True))
    assert place_in_step(row, step, 3, 2).tolist() == [keys[:n].count(key) for n, key in enumerate(keys)]
    want = naive_replay.medians(instances)
    assert instance_medians(first, chosen, value) == pytest.approx(want, nan_ok=True)
    assert beyond_others(first, chosen, value) == pytest.approx(naive_replay.beyond(instances), nan_ok=True)
