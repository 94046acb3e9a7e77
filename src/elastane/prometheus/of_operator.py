"""The metrics of the operator."""

from __future__ import annotations

from elastane.prometheus.declared import Declarations

OPERATOR = Declarations()

LEADER = OPERATOR.gauge("elastane_operator_leader", "Whether this operator leads, and may act.")
RECONCILE_SECONDS = OPERATOR.histogram(
    "elastane_operator_reconcile_seconds",
    "How long looks at jobs took, with what was done about what was seen.",
    (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 20.0),
)
RECONCILES = OPERATOR.counter("elastane_operator_reconciles_total", "Looks at jobs, by how they ended.", "outcome")
ACTIONS = OPERATOR.counter("elastane_operator_actions_total", "What was done about what was seen.", "action")
API_REQUESTS = OPERATOR.counter(
    "elastane_operator_api_requests_total", "Requests to the API server, but those of watches.", "method"
)
QUEUE_LENGTH = OPERATOR.gauge("elastane_operator_queue_length", "Jobs that are due to be looked at.")
JOBS = OPERATOR.gauge("elastane_operator_jobs", "ElasticJobs that are known.")
JOB_CONDITIONS = OPERATOR.gauge(
    "elastane_operator_job_conditions", "ElasticJobs by each condition that holds for them.", "condition"
)
PODS = OPERATOR.gauge("elastane_operator_pods", "Pods of ElasticJobs that are known.", "role", "phase")
