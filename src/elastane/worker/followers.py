"""The master's messages as calls to those who follow worlds and evaluation on a worker's behalf."""

from __future__ import annotations

from elastane.model.world import Place
from elastane.rpc import evaluation_wire
from elastane.rpc.protos import node_pb2 as pb
from elastane.worker.link import EvaluationFollower, WorldFollower


def pass_to_evaluation(follower: EvaluationFollower, message: pb.MasterMessage) -> None:
    """What the master says of evaluation."""
    match message.WhichOneof("body"):
        case "take_version":
            follower.take_version(message.take_version.multiple_of, message.take_version.folder)
        case "run_task":
            follower.run(evaluation_wire.work_from_wire(message.run_task))
        case "stop_training":
            follower.stop_training()
        case "evaluation_over":
            follower.over()


def pass_to_world(follower: WorldFollower, message: pb.MasterMessage) -> None:
    """What the master says of worlds."""
    match message.WhichOneof("body"):
        case "next_world":
            told = message.next_world
            follower.next_world(Place(told.version, told.rank, told.size), recover=told.recover, over=told.over)
        case "go_to_world":
            follower.go(message.go_to_world.version)
        case "world_settled":
            follower.settled(message.world_settled.version)
