"""Metrics in pieces: merged states give what one pass over all the data gives."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from elastane.core.metrics import AUC, Accuracy, Bounded, Mean, Metric
from elastane.model.errors import InvalidInput


def merged(into: Metric, *parts: Metric) -> Metric:
    """As the job does it: states travel as JSON."""
    for part in parts:
        into.merge(json.loads(json.dumps(part.state())))
    return into


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_a_mean_is_weighted_by_samples(sizes: list[int]) -> None:
    parts = [np.arange(size, dtype=np.float64) + place for place, size in enumerate(sizes)]
    by_sample, by_batch = [], []
    for values in parts:
        by_sample.append(Mean())
        by_sample[-1].update(values)
        by_batch.append(Mean())
        by_batch[-1].update(values.mean(), len(values))
    exact = np.concatenate(parts).mean()
    assert merged(Mean(), *by_sample).result() == pytest.approx(exact, rel=1e-12)
    assert merged(Mean(), *by_batch).result() == pytest.approx(exact, rel=1e-12)


def test_a_mean_of_one_number_needs_its_samples() -> None:
    with pytest.raises(InvalidInput, match="each sample's value"):
        Mean().update(0.5)


def test_accuracy_counts_samples() -> None:
    first, second = Accuracy(), Accuracy()
    first.update([1, 2, 3], [1, 2, 0])
    second.update([5], [5])
    assert merged(Accuracy(), first, second).result() == 0.75
    with pytest.raises(InvalidInput, match="shape"):
        first.update([[0.1, 0.9]], [1])


@pytest.mark.parametrize("skew", [1.0, 6.0])
def test_auc_of_a_million_predictions_is_sklearns_within_its_stated_error(skew: float) -> None:
    generator = np.random.default_rng(7)
    labels = (generator.random(1_000_000) < 0.3).astype(np.int64)
    scores = np.clip(generator.random(1_000_000) ** skew * 0.8 + 0.2 * labels * generator.random(1_000_000), 0, 1)
    evaluators = []
    for part in range(4):
        evaluators.append(AUC())
        evaluators[-1].update(scores[part::4], labels[part::4])
    auc = AUC()
    merged(auc, *evaluators)
    exact = roc_auc_score(labels, scores)
    assert abs(auc.result() - exact) <= auc.error() + 1e-12
    assert auc.error() < (2e-4 if skew == 1.0 else 2e-2)
    whole = AUC()
    whole.update(scores, labels)
    assert auc.result() == whole.result()


@given(st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=2, max_size=60), st.integers(2, 50))
def test_auc_is_never_further_off_than_it_says(samples: list[tuple[float, bool]], bins: int) -> None:
    labels = [int(label) for _, label in samples]
    auc = AUC(bins, low=-3, high=3)
    auc.update([score for score, _ in samples], labels)
    if len(set(labels)) < 2:
        assert math.isnan(auc.result())
        assert math.isnan(auc.error())
    else:
        exact = roc_auc_score(labels, [score for score, _ in samples])
        assert abs(auc.result() - exact) <= auc.error() + 1e-12


@pytest.mark.parametrize(
    ("scores", "labels", "problem"),
    [
        ([1.5], [1], "not from 0 to 1"),
        ([math.nan], [1], "not from 0 to 1"),
        ([0.5], [2], "neither 0 nor 1"),
        ([0.5, 0.5], [1], "2 scores for 1 labels"),
    ],
)
def test_auc_refuses_what_it_cannot_place(scores: list[float], labels: list[int], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        AUC().update(scores, labels)


def test_the_metrics_here_are_what_the_protocol_asks_for() -> None:
    assert all(isinstance(metric, Metric) for metric in (Mean(), Accuracy(), AUC()))
    assert [isinstance(metric, Bounded) for metric in (Mean(), AUC())] == [False, True]
