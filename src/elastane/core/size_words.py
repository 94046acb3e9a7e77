"""The one line that says why a size was chosen, or why none was."""

from __future__ import annotations

from elastane.model.sizing import JobSize, Prediction

_WORDS = {"workers": "workers", "ps": "PS", "worker_cpu": "worker cpu", "ps_cpu": "PS cpu"}


def change(before: JobSize, after: JobSize) -> str:
    """`workers 4->8, PS 1->2`."""
    parts = []
    for field, word in _WORDS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            parts.append(f"{word} {_number(old)}->{_number(new)}")
    return ", ".join(parts)


def speed(samples_per_s: float) -> str:
    """`2.1k`, as it stands before `samples/s`."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if samples_per_s >= unit:
            return f"{samples_per_s / unit:.1f}{letter}"
    return f"{samples_per_s:.0f}" if samples_per_s >= 10 else f"{samples_per_s:.2g}"


def gain(present: float, prediction: Prediction, observations: int) -> str:
    """`2.1k->3.4k samples/s (+62% +-9%, 6 observations)`."""
    more = 100 * (prediction.samples_per_s / present - 1)
    doubt = 100 * (prediction.high - prediction.low) / 2 / present
    seen = f"{observations} observation{'' if observations == 1 else 's'}"
    return f"{speed(present)}->{speed(prediction.samples_per_s)} samples/s ({more:+.0f}% +-{doubt:.0f}%, {seen})"


def seconds(duration_s: float) -> str:
    """`31 s`, `12 min`, `3.5 h`."""
    if duration_s >= 7200:
        return f"{duration_s / 3600:.1f} h"
    return f"{duration_s / 60:.0f} min" if duration_s >= 120 else f"{duration_s:.0f} s"


def _number(value: float | None) -> str:
    return "any" if value is None else f"{value:g}"
