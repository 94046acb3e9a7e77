"""Training by parameter servers as TensorFlow documents it, with TensorFlow's own coordinator and nothing of elastane.

The tests run it as it is, and once more with only the line that names the coordinator replaced. It prints what it has
learnt. TF_CONFIG says where the servers are.
"""

import random
from typing import Any

import tensorflow as tf

ClusterCoordinator = tf.distribute.coordinator.ClusterCoordinator

COLOURS = ["red", "green", "blue", "yellow"]
EXAMPLES = 200

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
coordinator = ClusterCoordinator(strategy)

with strategy.scope():
    initializer = tf.lookup.KeyValueTensorInitializer(COLOURS, list(range(len(COLOURS))), tf.string, tf.int64)
    table = tf.lookup.StaticHashTable(initializer, default_value=-1)
    inputs = tf.keras.Input([], dtype=tf.int64)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Embedding(64, 4)(inputs)))
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.5)
    accuracy = tf.keras.metrics.BinaryAccuracy(threshold=0.0)
    steps = tf.Variable(0, dtype=tf.int64)


def feature_and_label_gen() -> tuple[list[str], list[int]]:
    draw = random.Random(0)
    features = [draw.choice(COLOURS) for _ in range(EXAMPLES)]
    return features, [int(colour in COLOURS[:2]) for colour in features]


def dataset_fn(_: Any) -> tf.data.Dataset:
    examples = tf.data.Dataset.from_tensor_slices(feature_and_label_gen())
    return examples.shuffle(EXAMPLES).repeat().batch(16).prefetch(2)


@tf.function
def per_worker_dataset_fn() -> Any:
    return strategy.distribute_datasets_from_function(dataset_fn)


@tf.function
def step_fn(iterator: Any) -> Any:
    def replica_fn(colours: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(table.lookup(colours), training=True)
            targets = tf.cast(labels[:, None], tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(targets, logits)
        steps.assign_add(1)
        return loss

    return strategy.run(replica_fn, args=next(iterator))


per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
for epoch in range(4):
    accuracy.reset_state()
    for _ in range(25):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    assert coordinator.done()
    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    print("epoch", epoch, "accuracy", accuracy.result().numpy(), "loss", loss.fetch())
print("steps", steps.numpy(), "learnt", bool(loss.fetch() < 0.3), coordinator.fetch({"as": ["given"]}))
