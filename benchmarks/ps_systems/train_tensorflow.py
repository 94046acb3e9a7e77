"""The training under TensorFlow's ParameterServerStrategy: chief, worker and parameter server, each a process.

What makes it fast is used: many steps in one scheduled function, which reads its batches as raw bytes from memory; each
id of a batch looked up once; the optimizer's own sparse and dense operations on the servers, without locks. Operations
have one thread in each process, as every system's have here.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from deepfm_data import CARDINALITIES, FIELDS, NUMBERS, OFFSETS, ROWS, auc

from benchmarks.ps_systems.marks import Marks, Outcome
from benchmarks.ps_systems.workload import (
    ACCUMULATOR,
    BATCH,
    DENSE_LR,
    DIM,
    HIDDEN,
    INPUTS,
    LR,
    PROBES,
    SCALE,
    WARM_UP,
    held_out_clicks,
    options,
    training_clicks,
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

STEPS_PER_CALL = 20


def serve(cluster: dict[str, list[str]], role: str, index: int) -> None:
    """Be a worker or a parameter server until killed."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    tf.distribute.Server(cluster, job_name=role, task_index=index, protocol="grpc", config=config).join()


class Adagrad:
    """A variable on the servers and its sums of squares, in as many parts as there are servers to hold them."""

    def __init__(self, strategy: Any, shape: tuple[int, ...], initial: Callable[..., Any], lr: float) -> None:
        with strategy.scope():
            self.variable = tf.Variable(lambda: initial(shape), trainable=True, dtype=tf.float32)
        self._lr = lr
        self._pairs = []
        for part in _parts(self.variable):
            with tf.device(part.device):  # The strategy would lay them out one after the other, elsewhere.
                self._pairs.append((part, tf.Variable(tf.fill(part.shape, ACCUMULATOR), trainable=False)))

    @property
    def value(self) -> Any:
        return tf.convert_to_tensor(self.variable)

    def push(self, gradient: Any) -> list[Any]:
        done, start = [], 0
        for variable, sums in self._pairs:
            rows = variable.shape[0]
            with tf.device(variable.device):
                done.append(
                    tf.raw_ops.ResourceApplyAdagradV2(
                        var=variable.handle,
                        accum=sums.handle,
                        lr=self._lr,
                        epsilon=1e-10,
                        grad=gradient[start : start + rows] if len(self._pairs) > 1 else gradient,
                    )
                )
            start += rows
        return done

    def pull_rows(self, ids: Any) -> Any:
        return tf.nn.embedding_lookup(self.variable, ids)

    def push_rows(self, ids: Any, gradients: Any) -> list[Any]:
        if len(self._pairs) == 1:
            return [self._push_part(*self._pairs[0], ids, gradients)]
        sizes = [int(variable.shape[0]) for variable, _ in self._pairs]
        starts = tf.constant(np.cumsum([0, *sizes[:-1]]), tf.int64)
        owners = tf.cast(tf.searchsorted(starts, ids, side="right") - 1, tf.int32)
        by_part = tf.dynamic_partition(ids, owners, len(sizes))
        values = tf.dynamic_partition(gradients, owners, len(sizes))
        return [
            self._push_part(*pair, by_part[part] - starts[part], values[part]) for part, pair in enumerate(self._pairs)
        ]

    def _push_part(self, variable: Any, sums: Any, ids: Any, gradients: Any) -> Any:
        with tf.device(variable.device):
            return tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=variable.handle, accum=sums.handle, lr=self._lr, epsilon=1e-10, grad=gradients, indices=ids
            )


def _parts(variable: Any) -> list[Any]:
    return list(variable.variables) if hasattr(variable, "variables") else [variable]


class Model:
    """The DeepFM, on one table of all fields or on a table for each."""

    def __init__(self, strategy: Any, tables: int) -> None:
        def rows(shape: tuple[int, ...]) -> Any:
            return tf.random.uniform(shape, -SCALE, SCALE)

        counts = [ROWS] if tables == 1 else [int(count) for count in CARDINALITIES]
        self._tables = [Adagrad(strategy, (count, DIM), rows, LR) for count in counts]
        self._dense: list[Adagrad] = []
        width = INPUTS
        for outputs in (*HIDDEN, 1):
            bound = 1 / np.sqrt(width)  # as torch.nn.Linear begins

            def weights(shape: tuple[int, ...], bound: float = bound) -> Any:
                return tf.random.uniform(shape, -bound, bound)

            shapes = ((width, outputs), (outputs,))
            self._dense += [Adagrad(strategy, shape, weights, DENSE_LR) for shape in shapes]
            width = outputs

    def keys(self, ids: Any) -> list[tuple[Any, Any]]:
        """For each table its ids of the batch, each once, and where they stand in the batch."""
        if len(self._tables) == 1:
            unique, places = tf.unique(tf.reshape(ids, [-1]))
            return [(unique, places)]
        local = ids - tf.constant(OFFSETS, tf.int64)
        return [tuple(tf.unique(local[:, field])) for field in range(FIELDS)]

    def pull(self, keys: list[tuple[Any, Any]]) -> list[Any]:
        return [table.pull_rows(unique) for table, (unique, _) in zip(self._tables, keys, strict=True)]

    def push(self, keys: list[tuple[Any, Any]], gradients: list[Any]) -> list[Any]:
        done = []
        for table, (unique, _), gradient in zip(self._tables, keys, gradients, strict=True):
            done += table.push_rows(unique, gradient)
        return done

    def spread(self, keys: list[tuple[Any, Any]], rows: list[Any]) -> Any:
        """The rows as the batch has them: (samples, FIELDS, DIM)."""
        if len(rows) == 1:
            return tf.reshape(tf.gather(rows[0], keys[0][1]), [-1, FIELDS, DIM])
        spread = [tf.gather(part, places) for part, (_, places) in zip(rows, keys, strict=True)]
        return tf.stack(spread, axis=1)

    def combine(self, keys: list[tuple[Any, Any]], gradient: Any) -> list[Any]:
        """The gradients of the rows, from those of the batch."""
        if len(keys) == 1:
            flat = tf.reshape(gradient, [-1, DIM])
            return [tf.math.unsorted_segment_sum(flat, keys[0][1], tf.size(keys[0][0]))]
        return [
            tf.math.unsorted_segment_sum(gradient[:, field], places, tf.size(unique))
            for field, (unique, places) in enumerate(keys)
        ]

    def logits(self, rows: Any, numbers: Any, dense: list[Any]) -> Any:
        total, squares = tf.reduce_sum(rows, 1), tf.reduce_sum(rows * rows, 1)
        pairs = tf.reduce_sum(total[:, 1:] ** 2 - squares[:, 1:], 1) / 2
        hidden = tf.concat([tf.reshape(rows, [-1, FIELDS * DIM]), numbers], 1)
        for layer in range(0, len(dense), 2):
            hidden = tf.nn.bias_add(hidden @ dense[layer], dense[layer + 1])
            if layer + 2 < len(dense):
                hidden = tf.nn.relu(hidden)
        return total[:, 0] + pairs + hidden[:, 0]

    def predict(self, ids: Any, numbers: Any) -> Any:
        keys = self.keys(ids)
        return self.logits(self.spread(keys, self.pull(keys)), numbers, [one.value for one in self._dense])

    def step(self, ids: Any, numbers: Any, clicked: Any) -> list[Any]:
        keys = self.keys(ids)
        pulled = self.pull(keys)
        dense = [one.value for one in self._dense]
        rows = self.spread(keys, pulled)
        with tf.GradientTape() as tape:
            tape.watch([rows, *dense])
            logits = self.logits(rows, numbers, dense)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicked, logits))
        row_gradient, *gradients = tape.gradient(loss, [rows, *dense])
        done = self.push(keys, self.combine(keys, row_gradient))
        for one, gradient in zip(self._dense, gradients, strict=True):
            done += one.push(gradient)
        return done


class Chief:
    """Makes the variables, gives the workers their functions, and says what it came to."""

    def __init__(self, cluster: dict[str, list[str]], settings: argparse.Namespace) -> None:
        _use_few_threads()
        servers = len(cluster["ps"])
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
        )
        # One table must lie on all servers; many are laid out over them whole, one after the other.
        fused = settings.tables == 1
        split = tf.distribute.experimental.partitioners.MinSizePartitioner(1 << 20, servers) if fused else None
        strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._model = Model(strategy, settings.tables)
        self._batches = settings.batches
        self._folder = settings.folder
        self._data = settings.data
        for name in ("_train", "_pull_often", "_push_often", "_predict"):
            setattr(self, name, tf.function(getattr(self, name)))

    def run(self) -> None:
        clicks, held_out = training_clicks(self._data), held_out_clicks(self._data)
        for start in range(0, len(clicks), BATCH):
            part = slice(start, start + BATCH)
            clicks.ids[part].tofile(f"{self._folder}/ids-{start // BATCH}")
            np.hstack([clicks.numbers[part], clicks.clicked[part, None]]).tofile(
                f"{self._folder}/rest-{start // BATCH}"
            )
        marks = Marks(self._folder)
        self._schedule(0, WARM_UP)
        began = marks.begin()
        self._schedule(WARM_UP, WARM_UP + self._batches)
        ended = marks.end()
        scores = []
        for start in range(0, len(held_out), BATCH):
            part = slice(start, start + BATCH)
            call = (tf.constant(held_out.ids[part]), tf.constant(held_out.numbers[part]))
            scores.append(self._coordinator.schedule(self._predict, args=call))
        self._coordinator.join()
        area = auc(np.concatenate([score.fetch() for score in scores]), held_out.clicked)
        pull_ms, push_ms = self._timed_ms(self._pull_often), self._timed_ms(self._push_often)
        marks.finish(Outcome(self._batches * BATCH, began, ended, pull_ms, push_ms, area))

    def _schedule(self, first: int, end: int) -> None:
        """Let the workers train on these batches, each on the next that none of them has."""
        for start in range(first, end, STEPS_PER_CALL):
            call = (tf.constant(start), tf.constant(min(start + STEPS_PER_CALL, end)))
            self._coordinator.schedule(self._train, args=call)
        self._coordinator.join()

    def _timed_ms(self, probe: Callable[[], Any]) -> float:
        self._coordinator.schedule(probe)
        self._coordinator.join()
        began = time.perf_counter()
        self._coordinator.schedule(probe)
        self._coordinator.join()
        return (time.perf_counter() - began) / PROBES * 1000

    # --- on a worker ---

    def _read(self, batch: Any) -> tuple[Any, Any, Any]:
        name = tf.strings.as_string(batch)
        ids = tf.io.decode_raw(tf.io.read_file(tf.strings.join([f"{self._folder}/ids-", name])), tf.int64)
        rest = tf.io.decode_raw(tf.io.read_file(tf.strings.join([f"{self._folder}/rest-", name])), tf.float32)
        rest = tf.reshape(rest, [BATCH, NUMBERS + 1])
        return tf.reshape(ids, [BATCH, FIELDS]), rest[:, :-1], rest[:, -1]

    def _train(self, first: Any, end: Any) -> Any:
        for batch in tf.range(first, end):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            with tf.control_dependencies(self._model.step(*self._read(batch))):
                tf.no_op()
        return end

    def _pull_often(self) -> Any:
        keys = self._model.keys(self._read(tf.constant(0))[0])
        total = tf.constant(0.0)
        for _ in tf.range(PROBES):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            with tf.control_dependencies([total]):
                total += tf.add_n([rows[0, 0] for rows in self._model.pull(keys)])
        return total

    def _push_often(self) -> Any:
        keys = self._model.keys(self._read(tf.constant(0))[0])
        # Zeros cost what other numbers cost, and spoil nothing.
        gradients = [tf.zeros([tf.size(unique), DIM]) for unique, _ in keys]
        done = tf.constant(0)
        for _ in tf.range(PROBES):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)
            with tf.control_dependencies([done]):
                pushed = self._model.push(keys, gradients)
            with tf.control_dependencies(pushed):
                done += 1
        return done

    def _predict(self, ids: Any, numbers: Any) -> Any:
        return self._model.predict(ids, numbers)


def _use_few_threads() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


def main() -> None:
    made = options()
    made.add_argument("--cluster", type=json.loads, required=True)
    made.add_argument("--role", choices=("chief", "worker", "ps"), required=True)
    made.add_argument("--index", type=int, default=0)
    settings = made.parse_args()
    if settings.role == "chief":
        Chief(settings.cluster, settings).run()
    else:
        serve(settings.cluster, settings.role, settings.index)


if __name__ == "__main__":
    main()
