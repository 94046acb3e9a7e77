"""A Wide & Deep model on TensorFlow's own parameter servers, with workers that come and go.

python examples/wide_and_deep.py             # starts two parameter servers and three workers here, uses two at a time
elastane run --workers 2:4 --name wide --strategy parameter_server \
    --worker-command "elastane coordinate --tensorflow-ps 2 examples/wide_and_deep.py"
elastane scale wide --workers 4              # meanwhile, from another terminal
"""

import json
import multiprocessing
import os
import socket
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from elastane.tensorflow import ClusterCoordinator

EPOCHS = 6
STEPS = 100
ITEMS, USERS, WIDTH = 1000, 500, 8


def clicks(_: Any) -> tf.data.Dataset:
    """Endless samples: a user, an item, and whether the one clicks the other."""

    def sample(_: Any) -> tuple[Any, Any, Any]:
        user = tf.random.uniform([64], 0, USERS, tf.int64)
        item = tf.random.uniform([64], 0, ITEMS, tf.int64)
        return user, item, tf.cast((user * 7 + item * 3) % 10 < 4, tf.float32)

    return tf.data.Dataset.counter().map(sample).prefetch(2)


class WideAndDeep(tf.Module):  # type: ignore[misc]
    """The wide part remembers which pairs go together, the deep part what users and items are like."""

    def __init__(self) -> None:
        self.wide = tf.Variable(tf.zeros([10_000, 1]))
        self.user = tf.Variable(0.05 * tf.random.normal([USERS, WIDTH]))
        self.item = tf.Variable(0.05 * tf.random.normal([ITEMS, WIDTH]))
        self.hidden = tf.Variable(0.2 * tf.random.normal([2 * WIDTH, 32]))
        self.out = tf.Variable(tf.zeros([32, 1]))

    def __call__(self, user: Any, item: Any) -> Any:
        crossed = (user * 7 + item * 3) % 10_000
        deep = tf.concat([tf.gather(self.user, user), tf.gather(self.item, item)], 1)
        return tf.gather(self.wide, crossed)[:, 0] + (tf.nn.relu(deep @ self.hidden) @ self.out)[:, 0]


def train(spare: str | None) -> None:
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        model = WideAndDeep()

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> Any:
        def replica(user: Any, item: Any, clicked: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicked, model(user, item)))
            for variable, gradient in zip(
                model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
            ):
                variable.assign_sub(2.0 * tf.convert_to_tensor(gradient))
            return loss

        return strategy.run(replica, args=next(iterator))

    data = coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(clicks))
    iterators = iter(data)
    for epoch in range(EPOCHS):
        if spare and epoch == 2:
            coordinator.remove_worker(next(iter(coordinator.workers)))
        if spare and epoch == 4:
            coordinator.add_worker(spare)
        for _ in range(STEPS):
            loss = coordinator.schedule(step, args=(iterators,))
        coordinator.join()
        print(f"epoch {epoch}: loss {loss.fetch():.4f} with {len(coordinator.workers)} workers", flush=True)


def serve(job: str, index: int, addresses: list[str], ready: Any) -> None:
    from elastane.tensorflow.server import serve

    serve(job, index, addresses, ready.put)


def main() -> None:
    if "TF_CONFIG" in os.environ:  # The job has the servers, and adds and removes workers by itself.
        train(None)
        return
    processes = multiprocessing.get_context("spawn")
    ready = processes.Queue()
    servers, *workers = free_addresses(2), free_addresses(1), free_addresses(1), free_addresses(1)
    tasks = [("ps", 0, servers), ("ps", 1, servers), *(("worker", 0, worker) for worker in workers)]
    for job, index, addresses in tasks:
        processes.Process(target=serve, args=(job, index, addresses, ready), daemon=True).start()
    for _ in tasks:
        ready.get()
    cluster = {"chief": free_addresses(1), "ps": servers, "worker": workers[0] + workers[1]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    train(workers[2][0])


def free_addresses(count: int) -> list[str]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return addresses


if __name__ == "__main__":
    main()
