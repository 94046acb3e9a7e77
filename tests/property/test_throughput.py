"""The throughput model: what it says of sizes that were seen, of others, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.core.throughput import fit
from elastane.model.errors import InvalidInput
from elastane.model.sizing import History, JobKind, JobSize, PriorWindow, Window

RUNS = settings(max_examples=100, deadline=None)
SERVERS, ALLREDUCE = JobKind.PARAMETER_SERVER, JobKind.ALLREDUCE


def seen(size: JobSize, step_s: float, batch: float = 100.0, **parts: float) -> Window:
    """A window at a size whose steps take so long; parts of it as shares."""
    return Window(
        at_s=1.0,
        size=size,
        batch_size=batch,
        samples_per_s=size.workers * batch / step_s,
        step_s=step_s,
        hottest_share=parts.pop("hottest_share", 1 / size.ps if size.ps else 0.0),
        ps_cpu_used=parts.pop("ps_cpu_used", None),
        duration_s=1.0,
        **{name: share * step_s for name, share in parts.items()},  # type: ignore[arg-type]
    )


shares = st.floats(0, 0.45)
cores = st.sampled_from([None, 1.0, 2.0, 8.0])
sizes = st.builds(JobSize, st.integers(1, 200), st.integers(1, 40), cores, cores)
windows = st.builds(
    lambda size, step_s, batch, wait, pull: seen(size, step_s, batch, input_wait_s=wait, pull_s=pull),
    sizes,
    st.floats(1e-4, 1e3),
    st.sampled_from([1.0, 64.0, 4096.0]),
    shares,
    shares,
)
kinds = st.sampled_from(JobKind)


@RUNS
@given(kinds, windows)
def test_one_observation_predicts_itself_and_leaves_the_rest_open(kind: JobKind, window: Window) -> None:
    model = fit(kind, [window])
    here = model.predict(window.size)
    assert here.samples_per_s == pytest.approx(window.samples_per_s, rel=0.02)
    double = model.predict(replace(window.size, workers=2 * window.size.workers))
    assert double.low <= double.samples_per_s <= double.high
    # More than nothing, not more than twice; and far from sure.
    assert 0.9 * here.samples_per_s < double.samples_per_s < 2.03 * here.samples_per_s
    assert double.high - double.low > 0.08 * here.samples_per_s


@RUNS
@given(kinds, st.lists(windows, min_size=1, max_size=6), sizes)
def test_any_observations_give_an_interval_around_the_guess(kind: JobKind, all_: list[Window], size: JobSize) -> None:
    told = fit(kind, all_).predict(size)
    assert all(math.isfinite(value) and value > 0 for value in (told.samples_per_s, told.low, told.high))
    assert told.low <= told.samples_per_s <= told.high


parts_of_a_step = st.tuples(*[st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0])] * 6).filter(lambda parts: sum(parts) > 0.2)


@RUNS
@given(parts_of_a_step, st.sampled_from([JobSize(24, 6, 4.0, 4.0), JobSize(6, 3, 2.0, 8.0), JobSize(12, 12, 4.0, 2.0)]))
def test_a_job_of_the_model_is_known_after_a_few_sizes(parts: tuple[float, ...], asked: JobSize) -> None:
    def step_s(size: JobSize) -> float:
        # Each term has its part of the step at 8 workers and 4 PS, on 4 cores.
        load = size.workers / size.ps
        wcpu, pcpu = size.worker_cpu or 1.0, size.ps_cpu or 1.0
        terms = (1.0, 4 / wcpu, load / 2 * 4 / pcpu, load / 2, size.workers / 8, size.ps / 4)
        return sum(part * term for part, term in zip(parts, terms, strict=True))

    steps = [(2, 1), (4, 1), (4, 4), (8, 2), (16, 4), (16, 8), (32, 4), (32, 16)]
    sizes_seen = [JobSize(w, p, 4.0, 4.0) for w, p in steps] + [JobSize(8, 4, 2.0, 4.0), JobSize(8, 4, 4.0, 2.0)]
    model = fit(SERVERS, [seen(size, step_s(size)) for size in sizes_seen])
    told = model.predict(asked)
    true = asked.workers * 100.0 / step_s(asked)
    assert told.samples_per_s == pytest.approx(true, rel=0.1)


@RUNS
@given(
    st.floats(0.05, 1.0), st.floats(0, 0.5), st.floats(0, 0.02), st.sampled_from([1.0, 2.0, 5.0]), st.integers(2, 24)
)
def test_allreduce_is_compute_and_synchronising_joined_by_a_norm(
    compute_s: float, volume_s: float, round_s: float, norm: float, workers: int
) -> None:
    def window(count: int) -> Window:
        sync_s = volume_s * (count - 1) / count + round_s * (count - 1)
        step_s = (compute_s**norm + sync_s**norm) ** (1 / norm)
        return seen(JobSize(count), step_s, sync_s=1 - compute_s / step_s)

    model = fit(ALLREDUCE, [window(count) for count in (1, 2, 4, 8, 16)])
    assert model.predict(JobSize(workers)).samples_per_s == pytest.approx(window(workers).samples_per_s, rel=0.12)


@RUNS
@given(st.floats(0.05, 0.95), st.integers(1, 64), st.sampled_from([1.0, 2.0, 4.0]))
def test_no_prediction_is_above_what_the_cores_of_the_servers_can_do(busy: float, workers: int, ps_cpu: float) -> None:
    window = seen(JobSize(4, 2, 4.0, 2.0), 1.0, pull_s=0.1, ps_cpu_used=busy * 2.0)
    told = fit(SERVERS, [window]).predict(JobSize(workers, 2, 4.0, ps_cpu))
    assert told.samples_per_s <= window.samples_per_s / busy * ps_cpu / 2.0 * 1.02


def test_more_observations_make_a_prediction_surer() -> None:
    def doubt(count: int) -> float:
        windows = [seen(JobSize(w), 1 + 0.02 * w) for w in (1, 2, 4, 8, 12)[:count]]
        told = fit(ALLREDUCE, windows).predict(JobSize(16))
        return (told.high - told.low) / told.samples_per_s

    assert doubt(5) < doubt(3) < doubt(2) < doubt(1)
    assert doubt(5) < 0.15


def test_a_hot_server_is_not_cured_by_more_of_them() -> None:
    def gain(share: float) -> float:
        windows = [
            seen(
                JobSize(w, 4),
                0.2 + 0.8 * share * w,
                pull_s=0.8 * share * w / (0.2 + 0.8 * share * w),
                hottest_share=share,
            )
            for w in (2, 4, 8)
        ]
        model = fit(SERVERS, windows)
        return model.predict(JobSize(8, 8)).samples_per_s / model.predict(JobSize(8, 4)).samples_per_s

    assert gain(0.25) > 1.4
    assert gain(0.7) < 1.25


def test_what_limits_is_named() -> None:
    windows = [seen(JobSize(w, 1, 4.0, 2.0), 1 + 0.1 * w, pull_s=0.1 * w / (1 + 0.1 * w)) for w in (1, 2, 4, 8)]
    windows += [
        seen(JobSize(4, 2, 4.0, 2.0), 1.2, pull_s=0.2 / 1.2),
        seen(JobSize(4, 1, 4.0, 4.0), 1.2, pull_s=0.2 / 1.2),
    ]
    assert fit(SERVERS, windows).limit(JobSize(8, 1, 4.0, 2.0)) in {f"PS cpu limits at {at}" for at in (10, 11, 12)}
    assert fit(ALLREDUCE, [seen(JobSize(w), 1.0) for w in (1, 2, 4, 8, 16, 32)]).limit(JobSize(8)) in {
        "nothing seen limits it",
        *(f"what the workers share limits at {at}" for at in range(300, 10_000)),
    }
    assert fit(ALLREDUCE, [seen(JobSize(2), 1.0)]).limit(JobSize(2)) == "one size tells no limit"


def test_a_like_job_gives_the_shape_and_our_own_windows_the_height() -> None:
    theirs = tuple(PriorWindow(seen(JobSize(w), 3 * (1 + 0.1 * w)), 1.0) for w in (1, 2, 4, 8, 16))
    own = seen(JobSize(2), 1.2)
    told = fit(ALLREDUCE, [own], History(theirs)).predict(JobSize(16))
    assert told.samples_per_s == pytest.approx(16 * 100 / 2.6, rel=0.05)
    # What we see ourselves counts for more than what they saw.
    flat = [seen(JobSize(w), 1.0) for w in (2, 4, 8)]
    assert fit(ALLREDUCE, flat, History(theirs)).predict(JobSize(16)).samples_per_s > 1.2 * told.samples_per_s


def test_what_was_seen_before_the_speed_changed_by_itself_is_hardly_believed() -> None:
    slow = [replace(seen(JobSize(8), 4.0), at_s=float(at)) for at in range(10, 14)]
    before = [replace(seen(JobSize(4), 2.0), at_s=float(at)) for at in range(20, 24)]
    after = [replace(seen(JobSize(4), 1.0), at_s=float(at)) for at in range(30, 34)]
    told = fit(ALLREDUCE, [*slow, *before, *after]).predict(JobSize(8))
    unmoved = fit(ALLREDUCE, [*slow, *before]).predict(JobSize(8))
    assert unmoved.samples_per_s < 1.1 * before[0].samples_per_s
    assert told.high > 1.5 * after[0].samples_per_s


def test_a_job_with_one_global_batch_gives_each_worker_less() -> None:
    windows = [replace(seen(JobSize(w), 0.02 + 0.8 / w, batch=800 / w), fixed_global_batch=True) for w in (1, 2, 4)]
    assert fit(ALLREDUCE, windows).predict(JobSize(8)).samples_per_s == pytest.approx(800 / 0.12, rel=0.1)


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(InvalidInput, match="windows: none"):
        fit(SERVERS, [])
