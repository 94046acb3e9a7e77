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
