"""The master process of a local job: `python -m elastane.master AGENT_FD LIFELINE_FD READY_FD FOLDER [EVENTS]`.

The launcher starts it, and again if it dies: then it goes on from the journal in the job's folder. It writes its
addresses to READY_FD once it serves, and gives up when the lifeline closes, which happens only when the launcher is
gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from elastane.core.nodes import JobEnd
from elastane.master.event_log import EventLog
from elastane.master.journal import Journal
from elastane.master.master import JobMaster
from elastane.master.succession import end_record, lost_record, recover_journal, serve_metrics, write_scalars
from elastane.model.environment import ENV_MASTER, ENV_TOKEN
from elastane.model.errors import JournalLost
from elastane.model.job_spec import load_job
from elastane.model.node import NodeType
from elastane.platform.local.platform import LocalPlatform
from elastane.platform.local.registry import JobFolder
from elastane.rpc.log_lines import log_as_json_lines


async def main(agent_fd: int, lifeline_fd: int, ready_fd: int, folder: JobFolder, events_file: Path | None) -> int:
    record = folder.read()
    job = load_job(record.job)
    env = {**job.spec.worker.env, ENV_TOKEN: record.token}
    platform = None
    if job.spec.launches_nodes:
        platform = LocalPlatform(
            socket.socket(fileno=agent_fd),
            commands={
                NodeType.WORKER: job.spec.worker.command,
                NodeType.EVALUATOR: job.spec.worker.command,
                # -P: a file of the user's that is called like a module of ours must not take its place.
                NodeType.PS: (sys.executable, "-P", "-m", "elastane.ps"),
            },
            env=env,
            logs=folder.logs,
            grace_s=job.spec.termination_grace_period_seconds,
        )
    events = EventLog(events_file)
    if platform is not None and job.spec.journal_copies and not folder.journal.exists():
        # If nodes live, a master launched them, and its journal is gone.
        living = [event.node for event in await platform.known() if event.exit is None]
        try:
            if living:
                await recover_journal(folder, record.token, record.address, living, events)
        except JournalLost as error:
            folder.write_end(lost_record(job.name, str(error)))
            return 1
    journal = Journal(folder.journal)
    master = JobMaster(job, record.token, platform, events, journal, versions=folder.versions)
    metrics = await serve_metrics(master, record.metrics)
    write_scalars(master, record.tensorboard)
    env[ENV_MASTER] = address = await master.serve(record.address)
    os.write(ready_fd, json.dumps({"address": address, "metrics": metrics}).encode() + b"\n")
    os.close(ready_fd)

    launcher_gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(lifeline_fd, launcher_gone.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: master.node_manager.stop(at_once=False))
    running = asyncio.create_task(master.run())
    gone = asyncio.create_task(launcher_gone.wait())
    await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(lifeline_fd)
    if running.done():
        outcome = running.result()
    else:
        running.cancel()
        outcome = master.launcher_died()
    folder.write_history(MessageToDict(master.control.history.view()))
    folder.write_end(await end_record(master, outcome))
    if gone.done():
        await master.close(grace_s=0)
    else:
        gone.cancel()
        await master.close()
    return 0 if outcome.end is JobEnd.SUCCEEDED else 1


if __name__ == "__main__":
    log_as_json_lines(sys.stdout)
    events = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    fds = [int(text) for text in sys.argv[1:4]]
    sys.exit(asyncio.run(main(fds[0], fds[1], fds[2], JobFolder(Path(sys.argv[4])), events)))
