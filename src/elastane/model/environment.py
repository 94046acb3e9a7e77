"""The variables that a platform sets for a node, and that `elastane.join()`, guests and masters read."""

ENV_MASTER = "ELASTANE_MASTER"
"""HOST:PORT of the job's master."""

ENV_TOKEN = "ELASTANE_TOKEN"  # noqa: S105  # the variable's name, not a token
"""The job's token."""

ENV_TOKEN_FILE = "ELASTANE_TOKEN_FILE"  # noqa: S105  # likewise
"""A file that holds the job's token, for guests that are not given the token itself."""

ENV_NODE = "ELASTANE_NODE"
"""The node's full name."""

ENV_MEMORY = "ELASTANE_MEMORY"
"""A folder in memory that outlives the node, as long as its job runs on this machine."""

ENV_BRAIN = "ELASTANE_BRAIN"
"""HOST:PORT of the Brain, for masters."""

ENV_BRAIN_TOKEN_FILE = "ELASTANE_BRAIN_TOKEN_FILE"  # noqa: S105  # likewise
"""A file that holds the Brain's token."""

ENV_CERTIFICATE = "ELASTANE_CERTIFICATE"
"""The certificate of the master, as PEM text; without one it is on this machine, and spoken with in the clear."""

ENV_ROLE = "ELASTANE_ROLE"
"""What the node is in its job: worker, ps or evaluator. Without it, a worker."""

ENV_JOB_UID = "ELASTANE_JOB_UID"
"""The uid of the ElasticJob that owns a master's pods."""

ENV_NAMESPACE = "ELASTANE_NAMESPACE"
"""The namespace of a master's pods."""

ENV_METRICS = "ELASTANE_METRICS"
"""HOST:PORT at which a parameter server, or a master in a pod, serves its metrics; without it, it serves none."""

ENV_TENSORBOARD = "ELASTANE_TENSORBOARD"
"""The folder into which a master in a pod writes scalars for TensorBoard; without it, it writes none."""
