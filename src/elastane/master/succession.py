"""What every master process does, wherever it runs: find the journal of the one before, and say how the job ended."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.json_format import MessageToDict

from elastane.core.nodes import JobEnd, Outcome
from elastane.master.event_log import EventLog
from elastane.master.journal_copies import find_journal
from elastane.master.master import JobMaster
from elastane.model.errors import PlatformError
from elastane.model.ids import NodeName
from elastane.platform.local.registry import JobFolder
from elastane.rpc.server import ServerCertificate


async def recover_journal(
    folder: JobFolder,
    token: str,
    address: str,
    living: Collection[NodeName],
    events: EventLog,
    certificate: ServerCertificate | None = None,
) -> None:
    """Get the journal of the master that launched these nodes from them, into the job's folder. Raises JournalLost."""
    lines = await find_journal(
        token,
        address,
        living,
        lambda peer, method, reason: events.emit("message_refused", peer=peer, method=method, reason=reason),
        certificate,
    )
    beside = folder.journal.with_suffix(".found")
    beside.write_bytes(lines)
    beside.rename(folder.journal)
    events.emit("journal_found", bytes=len(lines))


async def serve_metrics(master: JobMaster, address: str) -> str:
    """The address at which metrics are served; empty if nobody wants them, or it cannot be: the job does without."""
    try:
        return await master.serve_metrics(address) if address else ""
    except PlatformError as error:
        structlog.get_logger("elastane.master").warning("metrics_not_served", reason=str(error))
        return ""


def write_scalars(master: JobMaster, folder: str) -> None:
    """Have scalars written, if somebody wants them; if that cannot be, the job does without."""
    try:
        if folder:
            master.write_scalars(Path(folder))
    except PlatformError as error:
        structlog.get_logger("elastane.master").warning("scalars_not_written", reason=str(error))


async def end_record(master: JobMaster, outcome: Outcome) -> dict[str, Any]:
    """How the job ended, its last status, and why it had its size, to be kept."""
    sizing = await master.explained()
    return {
        "end": outcome.end,
        "reason": outcome.reason,
        "error": master.node_manager.error_of(outcome),
        "status": MessageToDict(master.control.status()),
        **({} if sizing is None else {"sizing": MessageToDict(sizing)}),
    }


def lost_record(job: str, reason: str) -> dict[str, Any]:
    """The same of a job that ended because its journal is lost."""
    return {
        "end": JobEnd.FAILED,
        "reason": reason,
        "error": "",
        "status": {"job": job, "state": "failed", "reason": reason},
    }
