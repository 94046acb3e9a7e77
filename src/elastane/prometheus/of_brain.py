"""The metrics of the Brain."""

from __future__ import annotations

from elastane.prometheus.declared import Declarations

BRAIN = Declarations()

REQUESTS = BRAIN.counter("elastane_brain_requests_total", "Calls that were answered, by how.", "method", "outcome")
REQUEST_SECONDS = BRAIN.histogram(
    "elastane_brain_request_seconds",
    "From when a call was let in until it was answered.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
    "method",
)
REPORTS = BRAIN.counter("elastane_brain_reports_total", "Reports of windows, by whether they were stored.", "outcome")
ROWS = BRAIN.counter("elastane_brain_rows_total", "Windows in the reports that were stored.")
PLANS = BRAIN.counter(
    "elastane_brain_plans_total", "Plans that runs have asked for, by what they were told.", "outcome"
)
PLANS_WAITING = BRAIN.gauge("elastane_brain_plans_waiting", "Runs that wait for a plan.")
WRITES_WAITING = BRAIN.gauge("elastane_brain_writes_waiting", "Writes that wait for the database.")
PLANNERS_DIED = BRAIN.counter(
    "elastane_brain_planners_died_total", "Times that the processes which plan were replaced."
)
