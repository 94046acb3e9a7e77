"""The metrics of a job's master."""

from __future__ import annotations

from elastane.prometheus.declared import Declarations

MASTER = Declarations("job")

JOB_INFO = MASTER.gauge(
    "elastane_job_info", "1, with the strategy and elastane's version as labels.", "strategy", "version"
)
JOB_STATE = MASTER.gauge("elastane_job_state", "1 under the state that the job is in, 0 under the others.", "state")
JOB_ELAPSED = MASTER.gauge("elastane_job_elapsed_seconds", "The job's age; masters that died are counted in.")

WORKERS_WANTED = MASTER.gauge("elastane_workers_wanted", "How many workers the job is to have.")
WORLD_SIZE = MASTER.gauge("elastane_world_size", "Members of the current world.")
WORLD_VERSION = MASTER.gauge("elastane_world_version", "The version of the current world; 0 before the first.")
WORLD_CHANGE = MASTER.histogram(
    "elastane_world_change_seconds",
    "From when a next world was published until every member had moved; the steps go on meanwhile.",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "cause",
)
WORLD_STALL = MASTER.histogram(
    "elastane_world_stall_seconds",
    "By how much the longest step of those who stayed, in a change of the world, was longer than a usual one.",
    (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
    "cause",
)

STEPS = MASTER.counter("elastane_steps_total", "Steps that workers with a trainer have made together.")
LOSS = MASTER.gauge("elastane_loss", "The mean of what the workers said last of their losses.")
SAMPLES = MASTER.counter("elastane_samples_committed_total", "Samples that are committed.", "dataset")
SAMPLES_PER_SECOND = MASTER.gauge("elastane_samples_per_second", "Committed samples per second, over ten seconds.")
STEP_SECONDS = MASTER.gauge(
    "elastane_step_seconds",
    "What a step of the median worker takes: the whole, and the parts in which it waits.",
    "part",
)

DATASET_EPOCH = MASTER.gauge("elastane_dataset_epoch", "The first epoch that is not wholly committed.", "dataset")
DATASET_EPOCHS = MASTER.gauge("elastane_dataset_epochs", "How many epochs there are; 0 for an endless one.", "dataset")
DATASET_EPOCH_SAMPLES = MASTER.gauge(
    "elastane_dataset_epoch_samples", "Samples of an epoch; 0 for an endless one.", "dataset"
)
DATASET_EPOCH_COMMITTED = MASTER.gauge(
    "elastane_dataset_epoch_committed_samples", "Samples of the present epoch that are committed.", "dataset"
)
DATASET_FINISHED = MASTER.gauge(
    "elastane_dataset_finished", "Whether every sample of every epoch is committed.", "dataset"
)
SHARDS_LEASED = MASTER.gauge("elastane_shards_leased", "Shards that workers hold now.", "dataset")
TASKS_LEASED = MASTER.counter(
    "elastane_tasks_leased_total", "Shards that were ever leased, each time it was.", "dataset"
)
SHARDS_RETURNED = MASTER.counter(
    "elastane_shards_returned_total",
    "Shards, or rests of them, that are to be leased again: given back, or after a failed try.",
    "reason",
)

NODES = MASTER.gauge("elastane_nodes", "Nodes, the ended ones too.", "role", "status")
NODE_EXITS = MASTER.counter("elastane_node_exits_total", "Nodes that have ended.", "role", "reason")
NODE_RELAUNCHES = MASTER.counter("elastane_node_relaunches_total", "Nodes launched in place of one that ended.", "role")
NODE_CPU = MASTER.gauge("elastane_node_cpu_cores", "Cores that a living node uses, as it said last.", "node", "role")
NODE_CPU_LIMIT = MASTER.gauge(
    "elastane_node_cpu_limit_cores", "Cores that it may use, if there is a limit.", "node", "role"
)
NODE_MEMORY = MASTER.gauge(
    "elastane_node_memory_bytes", "Memory that a living node uses, as it said last.", "node", "role"
)
NODE_MEMORY_LIMIT = MASTER.gauge(
    "elastane_node_memory_limit_bytes", "Memory that it may use, if there is a limit.", "node", "role"
)
NODE_GPU_MEMORY = MASTER.gauge(
    "elastane_node_gpu_memory_bytes", "GPU memory that PyTorch has taken on a living node.", "node", "role"
)
NODE_RANK = MASTER.gauge("elastane_node_rank", "The rank of a member of the current world.", "node", "role")
NODE_RESTARTS = MASTER.gauge("elastane_node_restarts", "Restarts that a living node's slot has used.", "node", "role")
NODE_ATTENDING = MASTER.gauge(
    "elastane_node_attending", "Whether a living node's stream to the master is open.", "node", "role"
)
NODE_SAMPLES = MASTER.counter(
    "elastane_node_samples_committed_total", "Samples that a living node has committed by itself.", "node", "role"
)

EVALUATION_METRIC = MASTER.gauge(
    "elastane_evaluation_metric", "A metric of the version that was evaluated last, or is best.", "metric", "version"
)
EVALUATION_STEP = MASTER.gauge("elastane_evaluation_step", "The steps that this version had made.", "version")
EVALUATION_RUNNING = MASTER.gauge("elastane_evaluation_running", "Whether a version is being evaluated.")
EVALUATION_SAMPLES = MASTER.gauge("elastane_evaluation_samples", "Samples that an evaluation has.")
EVALUATION_DONE = MASTER.gauge("elastane_evaluation_done_samples", "Samples of the running evaluation that are done.")

SERVERS_WANTED = MASTER.gauge("elastane_servers_wanted", "How many parameter servers the job is to have.")
SERVERS_VERSION = MASTER.gauge("elastane_servers_version", "The version of the last publication of who has what.")
SERVERS_SETTLED = MASTER.gauge("elastane_servers_settled", "Whether every bucket is where it should be.")
BUCKETS = MASTER.gauge("elastane_buckets", "Buckets of the parameter servers.")
BUCKETS_MOVING = MASTER.gauge("elastane_buckets_moving", "Buckets that are on their way to another server.")
SERVER_BUCKETS = MASTER.gauge("elastane_server_buckets", "Buckets that a parameter server owns.", "node")
SERVER_BACKUPS = MASTER.gauge("elastane_server_backups", "Buckets that it has the second copy of.", "node")
SERVER_ROWS_PER_SECOND = MASTER.gauge(
    "elastane_server_rows_per_second", "Rows pulled from it and pushed to it, over the last seconds.", "node"
)
SERVER_MEMORY = MASTER.gauge("elastane_server_memory_bytes", "Memory that it uses, as it said last.", "node")
SERVER_LEAVING = MASTER.gauge("elastane_server_leaving", "Whether it goes once its buckets have moved.", "node")
TABLE_ROWS = MASTER.gauge("elastane_table_rows", "Rows of a table on all servers, backups included.", "table")
TABLE_BYTES = MASTER.gauge("elastane_table_bytes", "What a table takes on all servers, backups included.", "table")
SERVERS_SAVED_AT = MASTER.gauge(
    "elastane_servers_saved_timestamp_seconds",
    "When the last checkpoint of the servers was whole, if this master saw it.",
)

AUTOSCALE = MASTER.gauge("elastane_autoscale_enabled", "Whether the job sizes itself.")
SIZING_STAGE = MASTER.gauge(
    "elastane_sizing_stage", "1 under the stage that its sizing is in, 0 under the others.", "stage"
)
PLANS = MASTER.counter(
    "elastane_plans_total", "Plans for the job's size and resources, by what became of them.", "outcome"
)
PLAN_PENDING = MASTER.gauge("elastane_plan_pending", "Whether a change of the size is under way.")
PLAN_PREDICTED = MASTER.gauge(
    "elastane_plan_predicted_samples_per_second",
    "What the newest change was to give: expected, and the bounds.",
    "bound",
)
PLAN_REALISED = MASTER.gauge("elastane_plan_realised_samples_per_second", "What it gives, once that was observed.")
PLAN_COST = MASTER.gauge("elastane_plan_cost_seconds", "Seconds of training that it cost.")
OOM_KILLS = MASTER.counter("elastane_oom_kills_total", "Nodes that were killed for want of memory.")

JOURNAL_BYTES = MASTER.gauge("elastane_journal_bytes", "Length of the master's journal.")
JOURNAL_WRITTEN_AT = MASTER.gauge("elastane_journal_written_timestamp_seconds", "When it was last written to.")
EVENTS = MASTER.counter("elastane_events_total", "Events of the job but those of the data, by their kind.", "kind")
