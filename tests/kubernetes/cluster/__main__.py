"""The cluster by hand: see `python -m tests.kubernetes.cluster --help`."""

import argparse
import sys

from tests.kubernetes import cluster as package
from tests.kubernetes.cluster.errors import ClusterError
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.waiting import NotInTime


def main() -> int:
    """Do what the command line says; an error is one line."""
    parser = argparse.ArgumentParser(
        prog="cluster", usage=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "up", "down", "env", "restart-apiserver"):
        commands.add_parser(name)
    commands.add_parser("hollow").add_argument("count", type=int)
    chosen = parser.parse_args()
    cluster = Cluster()
    try:
        match chosen.command:
            case "build":
                cluster.build()
            case "up":
                cluster.build()
                cluster.up()
                print(_export(cluster))
            case "down":
                cluster.down()
            case "env":
                print(_export(cluster))
            case "hollow":
                cluster.add_hollow_nodes(chosen.count)
            case "restart-apiserver":
                cluster.restart_apiserver()
    except (ClusterError, NotInTime) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _export(cluster: Cluster) -> str:
    return f"export KUBECONFIG={cluster.kubeconfig}"


if __name__ == "__main__":
    sys.exit(main())
