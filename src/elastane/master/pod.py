"""The master process in a pod: `python -m elastane.master.pod [SECRETS [TERMINATION_LOG]]`.

SECRETS is the folder that the job's Secret is mounted at. The process exits 0 when the job has ended, however that was,
and says how in its termination message. Whatever else ends it, it leaves the job as it is: the same pod starts it again
with its journal, or another pod without, and then the nodes have what they kept of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.master import JobMaster
from elastane.master.succession import end_record, lost_record, recover_journal, serve_metrics, write_scalars
from elastane.model.environment import ENV_JOB_UID, ENV_MASTER, ENV_METRICS, ENV_NAMESPACE, ENV_TENSORBOARD
from elastane.model.errors import JournalLost
from elastane.model.job_spec import ElasticJob, load_job
from elastane.model.node import NodeStatus
from elastane.platform.kubernetes.platform import KubernetesPlatform
from elastane.platform.kubernetes.pods import KEY_CERTIFICATE, KEY_JOB, KEY_KEY, KEY_TOKEN, SECRET_FOLDER, JobOwner
from elastane.platform.local.registry import JobFolder, jobs_folder
from elastane.rpc.log_lines import log_as_json_lines
from elastane.rpc.server import ServerCertificate

JOURNAL_COPIES = 2
"""How many nodes keep the journal, unless the job says it: a pod's disk goes with the pod."""

TERMINATION_LOG = Path("/dev/termination-log")
MOST_MESSAGE_BYTES = 4000
"""Kubernetes cuts a termination message at 4096 bytes."""


async def main(secrets: Path, termination_log: Path) -> None:
    """Run the job to its end, from its beginning or from where a master before has left it."""
    job = with_copies(load_job(json.loads((secrets / KEY_JOB).read_text())))
    token = (secrets / KEY_TOKEN).read_text().strip()
    certificate = ServerCertificate((secrets / KEY_CERTIFICATE).read_bytes(), (secrets / KEY_KEY).read_bytes())
    owner = JobOwner(job.name, os.environ[ENV_NAMESPACE], os.environ[ENV_JOB_UID], os.environ[ENV_MASTER])
    folder = JobFolder(jobs_folder() / job.name)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = folder.read_end()
    if record is None:
        await _run(job, token, certificate, owner, folder, termination_log)
    else:
        _conclude(record, folder, termination_log)  # The one before did not come to its own end.


async def _run(
    job: ElasticJob,
    token: str,
    certificate: ServerCertificate,
    owner: JobOwner,
    folder: JobFolder,
    termination_log: Path,
) -> None:
    events = EventLog(folder.path / "events.jsonl")
    platform = KubernetesPlatform(job, owner) if job.spec.launches_nodes else None
    address = f"0.0.0.0:{owner.master_address.rpartition(':')[2]}"
    try:
        if platform is not None and not folder.journal.exists():
            await _take_over(platform, job, token, address, folder, events, certificate)
    except JournalLost as error:
        record = lost_record(job.name, str(error))
        events.emit("job_ended", end=record["end"], reason=str(error), node=None)
        _conclude(record, folder, termination_log)
    else:
        journal = Journal(folder.journal)
        master = JobMaster(job, token, platform, events, journal, versions=folder.versions, certificate=certificate)
        await serve_metrics(master, os.environ.get(ENV_METRICS, ""))
        write_scalars(master, os.environ.get(ENV_TENSORBOARD, ""))
        await master.serve(address)
        outcome = await master.run()
        # Before the watchers have their time to hear of it: a master that comes next must not take the job up again.
        _conclude(await end_record(master, outcome), folder, termination_log)
        await master.close()
    if platform is not None:
        await platform.remove_all()
        await platform.close()


def _conclude(record: dict[str, Any], folder: JobFolder, termination_log: Path) -> None:
    folder.write_end(record)
    termination_log.write_bytes(termination_message(record))


async def _take_over(
    platform: KubernetesPlatform,
    job: ElasticJob,
    token: str,
    address: str,
    folder: JobFolder,
    events: EventLog,
    certificate: ServerCertificate,
) -> None:
    """If nodes have begun, a master launched them, and its journal is gone: get it from them. Raises JournalLost."""
    begun = [event for event in await platform.known() if event.status is not NodeStatus.PENDING]
    living = [event.node for event in begun if event.exit is None]
    if living and job.spec.journal_copies:
        await recover_journal(folder, token, address, living, events, certificate)
    elif begun:
        raise JournalLost("the master's pod is gone, its journal with it, and no node that lives keeps a copy")


def with_copies(job: ElasticJob) -> ElasticJob:
    """The job, with copies of the journal on its nodes unless it says how many."""
    if "journal_copies" in job.spec.model_fields_set:
        return job
    return job.model_copy(update={"spec": job.spec.model_copy(update={"journal_copies": JOURNAL_COPIES})})


def termination_message(record: dict[str, Any]) -> bytes:
    """How the job ended, as JSON that fits into a termination message; of a long error, its end."""
    numbers = {key: value for key, value in record["status"].items() if not isinstance(value, list | dict)}
    for most in (3000, 1500, 500, 100):
        message = {
            "end": str(record["end"]),
            "reason": record["reason"][:most],
            "error": record["error"][-most:],
            "status": {key: value[:100] if isinstance(value, str) else value for key, value in numbers.items()},
        }
        encoded = json.dumps(message, ensure_ascii=False).encode()
        if len(encoded) <= MOST_MESSAGE_BYTES:
            break
    return encoded


if __name__ == "__main__":
    # As process 1 of its pod it would not even hear of this signal. The job goes on without a master, until the next
    # comes: so nothing is said to the nodes, which look for it as they would after a crash.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    log_as_json_lines(sys.stdout)
    given = [Path(argument) for argument in sys.argv[1:3]]
    defaults = (Path(SECRET_FOLDER), TERMINATION_LOG)
    asyncio.run(main(*(given + list(defaults[len(given) :]))))
