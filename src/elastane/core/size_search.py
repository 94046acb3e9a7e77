"""Which size a job should have next, if any: the best one inside its budget that is worth going to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastane.model.sizing import NO_HISTORY, Budget, Change, Decision, History, JobKind, NoDecision, Window


@dataclass(frozen=True)
class SearchRules:
    """When a change is worth making."""

    pays_times: float = 3.0
    """The lower bound of what a change gains over the remaining work must be so many times what it costs."""
    stable_windows: int = 3
    """So many windows at a size before the next change."""
    growth: float = 2.0
    """At most so many times the largest size seen, unless history covers more."""
    delivered_share: float = 0.5
    """A change that gave less than this share of what was predicted is rolled back."""
    assumed_cost_s: float = 30.0
    """What a change costs until one was measured."""


RULES = SearchRules()


def decide(
    kind: JobKind,
    windows: Sequence[Window],
    changes: Sequence[Change],
    budget: Budget,
    remaining_samples: float | None,
    history: History = NO_HISTORY,
    now_s: float = 0.0,
    rules: SearchRules = RULES,
) -> Decision | NoDecision:
    """What to do next with a running job; a pure function of what was observed and done, both oldest first.

    The present size is that of the newest change, or of the newest window where nothing was changed. Of a job whose
    `remaining_samples` nobody knows, as many are assumed to remain as were done.
    """
    raise NotImplementedError


def first_size(kind: JobKind, budget: Budget, history: History) -> Decision | NoDecision:
    """Where a job should begin, from what is known of like jobs; no decision where nothing is."""
    raise NotImplementedError
