"""The local platform as the master sees it: scale plans become commands to the agent, its reports become events."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from elastane.core.exits import exit_reason
from elastane.model.environment import ENV_NODE
from elastane.model.errors import PlatformError
from elastane.model.event import NodeEvent
from elastane.model.ids import NodeName
from elastane.model.node import Node, NodeExit, NodeStatus, NodeType
from elastane.model.plan import ScalePlan
from elastane.model.quantity import Memory
from elastane.platform.base import Room
from elastane.platform.local.agent import MAX_COMMAND_BYTES


class LocalPlatform:
    """Talks to the job's agent. It is a Scaler and a NodeMonitor."""

    change_cost_s = 2.0

    def __init__(
        self,
        agent: socket.socket,
        *,
        commands: Mapping[NodeType, tuple[str, ...]],
        env: Mapping[str, str],
        logs: Path,
        grace_s: float,
    ) -> None:
        agent.setblocking(False)
        self._agent = agent
        self._commands = commands
        self._env = env
        self._logs = logs
        self._grace_s = grace_s

    async def scale(self, plan: ScalePlan, *, at_once: bool = False) -> None:
        for node in plan.remove_nodes:
            await self._send({"do": "remove", "node": node.name, "grace_s": 0 if at_once else self._grace_s})
        for node in plan.launch_nodes:
            await self._send(self._launch_command(node))

    async def known(self) -> list[NodeEvent]:
        await self._send({"do": "list"})
        events = []
        while (report := await self._report())["status"] != "listed":
            events.append(_event(report))  # The first may be from before: what nobody was there to read.
        return events

    async def events(self) -> AsyncIterator[NodeEvent]:
        while True:
            yield _event(await self._report())

    def room(self) -> Room:
        return Room(float(len(os.sched_getaffinity(0))), Memory(psutil.virtual_memory().available))

    async def _report(self) -> dict[str, Any]:
        message = await asyncio.get_running_loop().sock_recv(self._agent, MAX_COMMAND_BYTES)
        if not message:
            raise PlatformError("the agent that owns the node processes is gone")
        report: dict[str, Any] = json.loads(message)
        return report

    def _launch_command(self, node: Node) -> dict[str, Any]:
        memory = node.resource.memory
        return {
            "do": "launch",
            "node": node.name,
            "command": self._commands[node.type],
            "env": {"PYTHONUNBUFFERED": "1", **self._env, ENV_NODE: node.name},
            "log": str(self._logs / f"{node.short_name}.log"),
            "cpu": node.resource.cpu,
            "memory_bytes": None if memory is None else memory.bytes,
        }

    async def _send(self, command: dict[str, Any]) -> None:
        data = json.dumps(command).encode()
        if len(data) > MAX_COMMAND_BYTES:
            raise PlatformError(
                f"the command of {command.get('node')} has {len(data)} bytes, above {MAX_COMMAND_BYTES}"
            )
        try:
            await asyncio.get_running_loop().sock_sendall(self._agent, data)
        except OSError as error:
            raise PlatformError(f"the agent that owns the node processes is gone ({error.strerror})") from None


def _event(report: dict[str, Any]) -> NodeEvent:
    name = NodeName(report["node"])
    if report["status"] == "running":
        return NodeEvent(name, NodeStatus.RUNNING, pid=report["pid"])
    reason = exit_reason(report["code"], out_of_memory=report["out_of_memory"], log_tail=report["log_tail"])
    status = NodeStatus.SUCCEEDED if report["code"] == 0 else NodeStatus.FAILED
    return NodeEvent(name, status, exit=NodeExit(reason, report["code"], report["log_tail"]))
