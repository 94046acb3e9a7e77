"""`elastane operator`: look after the elastic jobs of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated

import typer

from elastane.cli.view import say
from elastane.model.environment import ENV_NAMESPACE
from elastane.model.errors import InvalidInput
from elastane.rpc.log_lines import log_as_json_lines


def operator(
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="A namespace to look after; may be given several times. By default the whole cluster.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            help="The namespace of the Lease by which several operators elect one; by default that of its pod.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    lease_seconds: Annotated[
        float, typer.Option(help="How long after it was killed another operator may take over.", min=2, max=600)
    ] = 15.0,
    health_port: Annotated[
        int | None,
        typer.Option(help="The port at which probes are answered, and /metrics; by default none.", min=1, max=65535),
    ] = None,
) -> None:
    """Make the masters of ElasticJobs, carry out ScalePlans and JobResources, and say in their status what happened.

    It uses the rights of the pod it runs in, or those of KUBECONFIG. It prints one line when it leads, and works until
    Ctrl-C or SIGTERM; jobs go on without it while it is away.
    """
    where = lease_namespace or os.environ.get(ENV_NAMESPACE) or "default"
    asyncio.run(_run(namespace or [], where, lease_seconds, health_port))


async def _run(namespaces: list[str], lease_namespace: str, lease_s: float, health_port: int | None) -> None:
    """Wait for the lead, and work until SIGTERM or Ctrl-C. Raises InvalidInput, PlatformError."""
    try:
        from elastane.operator.api import Api
        from elastane.operator.app import quiet_kopf, run_operator
        from elastane.operator.health import serve_health
        from elastane.operator.leader import Leader
        from elastane.operator.metrics import OperatorMetrics
        from elastane.prometheus.page import MetricsPage
    except ImportError as error:
        raise InvalidInput(f"operator: {error.name} is not installed; install elastane[kubernetes]") from None
    log_as_json_lines(sys.stderr)
    quiet_kopf()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = Api()
    leader = Leader(api, lease_namespace, lease_s)
    metrics = OperatorMetrics(api.requests, lambda: leader.held)
    health = None
    if health_port is not None:
        try:
            health = await serve_health(health_port, MetricsPage(metrics.collect))
        except OSError as error:
            await api.close()
            raise InvalidInput(f"health-port: {health_port} cannot be used: {error.strerror}") from None
    where = ", ".join(namespaces) or "all namespaces"

    def on_lead() -> None:
        say(f"elastane operator leads in {where} ({leader.identity})")

    try:
        await run_operator(api, leader, namespaces, stop, on_lead, metrics)
    finally:
        if health is not None:
            health.close()
        await api.close()
