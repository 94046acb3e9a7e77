"""A store beside a dictionary of rows: whatever is done to both, they hold the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elastane.model.ps import Initializer, InitializerKind, OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import reference
from elastane.ps.store import Store
from tests.store_rows import Floats, keys, pull, push, rows_in

N_BUCKETS = 3

TABLES = (
    TableSpec("plain", 3, OptimizerSpec(OptimizerKind.ADAGRAD, 0.1)),
    TableSpec("same-layout", 3, OptimizerSpec(OptimizerKind.MOMENTUM, 0.1), evict_after=3),
    TableSpec("admits", 2, OptimizerSpec(OptimizerKind.ADAM, 0.1), Initializer(InitializerKind.NORMAL), 2, 5),
    TableSpec("one-slot", 4, OptimizerSpec(OptimizerKind.ROWWISE_ADAGRAD, 0.1), admit_after=1),
)

ids = st.lists(st.integers(0, 12) | st.sampled_from([-1, -(2**63), 2**63 - 1]), min_size=1, max_size=8, unique=True)
tables = st.sampled_from(TABLES)
stores = st.integers(0, 1)
buckets = st.integers(0, N_BUCKETS - 1)


@dataclass
class ModelRow:
    weights: Floats
    slots: Floats
    frequency: int = 0
    last_step: int = 0


@dataclass
class Model:
    """What a store should hold."""

    rows: dict[tuple[str, int], ModelRow] = field(default_factory=dict)
    counters: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


def new_row(table: TableSpec, key: int) -> ModelRow:
    slots = reference.initial_slots(table.optimizer, 1, table.dim)[0].numpy()
    return ModelRow(reference.initial_weights(table, key).numpy(), slots)


class StoreMachine(RuleBasedStateMachine):
    """Two stores, each with its model, and buckets that move between them."""

    store_class: type[Store] = Store

    def __init__(self) -> None:
        super().__init__()
        self.stores = (self.store_class(N_BUCKETS), self.store_class(N_BUCKETS))
        self.models = (Model(), Model())
        self.step = 0
        self.seed = 0
        for table in TABLES:
            self.stores[0].define(table)
        # The other one learns of the tables from pages, in another order.
        for table in reversed(TABLES[:2]):
            self.stores[1].define(table)

    def teardown(self) -> None:
        # Each reserves more than a hundred gigabytes of addresses, and a machine is collected late.
        del self.stores

    def bucket_of(self, name: str, key: int) -> int:
        table = next(table for table in TABLES if table.name == name)
        return int(self.stores[0].buckets_of(*keys({table: [key]}))[0])

    def known(self, store: int, table: TableSpec) -> bool:
        return table in self.stores[store].tables()

    @rule(store=stores, table=tables)
    def define(self, store: int, table: TableSpec) -> None:
        assert self.stores[store].define(table) == table.number

    @rule(store=stores, table=tables, some=ids, later=st.integers(0, 2))
    def push(self, store: int, table: TableSpec, some: list[int], later: int) -> None:
        if not self.known(store, table):
            return
        self.step += later
        self.seed += 1
        gradients = np.random.default_rng(self.seed).standard_normal((len(some), table.dim)).astype(np.float32)
        push(self.stores[store], table, some, gradients, lr=0.1, step=self.step)
        model = self.models[store]
        for key, gradient in zip(some, gradients, strict=True):
            name = (table.name, key)
            if name not in model.rows:
                count, _ = model.counters.get(name, (0, 0))
                if count < table.admit_after:
                    model.counters[name] = (count + 1, self.step)
                    continue
                model.counters.pop(name, None)
                model.rows[name] = new_row(table, key)
            row = model.rows[name]
            reference.update(
                table.optimizer,
                torch.from_numpy(row.weights)[None],
                torch.from_numpy(row.slots)[None],
                torch.tensor([row.frequency]),
                torch.from_numpy(gradient)[None],
                0.1,
            )
            row.frequency += 1
            row.last_step = self.step

    @rule(store=stores, table=tables, some=ids, value=st.floats(-2, 2, width=32), only_new=st.booleans())
    def assign(self, store: int, table: TableSpec, some: list[int], value: float, only_new: bool) -> None:
        if not self.known(store, table):
            return
        values = np.full((len(some), table.dim), value, np.float32)
        self.stores[store].assign(table.number, np.array(some), values, only_new=only_new, step=self.step)
        model = self.models[store]
        for key in some:
            name = (table.name, key)
            model.counters.pop(name, None)
            if name not in model.rows:
                model.rows[name] = new_row(table, key)
                model.rows[name].last_step = self.step
            elif only_new:
                continue
            model.rows[name].weights[:] = value

    @rule(store=stores, table=tables, some=ids)
    def pull(self, store: int, table: TableSpec, some: list[int]) -> None:
        if not self.known(store, table):
            return
        rows = self.models[store].rows
        wanted = [rows.get((table.name, key)) or new_row(table, key) for key in some]
        found = pull(self.stores[store], table, some)
        np.testing.assert_allclose(found, np.stack([row.weights for row in wanted]), rtol=1e-4, atol=1e-5)

    @rule(store=stores, bucket=buckets)
    def drop(self, store: int, bucket: int) -> None:
        self.stores[store].drop(bucket)
        model = self.models[store]
        model.rows = {name: row for name, row in model.rows.items() if self.bucket_of(*name) != bucket}
        model.counters = {name: count for name, count in model.counters.items() if self.bucket_of(*name) != bucket}

    @rule(store=stores, bucket=buckets)
    def copy(self, store: int, bucket: int) -> None:
        """Copy a bucket to the other store, over what it has there."""
        for page in self.stores[store].pages(bucket):
            self.stores[1 - store].install(bucket, page)
        source, to = self.models[store], self.models[1 - store]
        for counted in [name for name in source.counters if self.bucket_of(*name) == bucket]:
            if counted not in to.rows:
                to.counters[counted] = source.counters[counted]
        for name in [name for name in source.rows if self.bucket_of(*name) == bucket]:
            row = source.rows[name]
            to.rows[name] = ModelRow(row.weights.copy(), row.slots.copy(), row.frequency, row.last_step)
            to.counters.pop(name, None)

    @rule(store=stores, bucket=buckets)
    def move(self, store: int, bucket: int) -> None:
        self.drop(1 - store, bucket)
        self.copy(store, bucket)
        assert self.stores[0].digest(bucket) == self.stores[1].digest(bucket)
        self.drop(store, bucket)
        assert self.stores[store].digest(bucket) == 0

    @rule(store=stores, bucket=buckets)
    def evict(self, store: int, bucket: int) -> None:
        model, keep = self.models[store], {table.name: table.evict_after for table in TABLES}

        def old(name: tuple[str, int], last_step: int) -> bool:
            after = keep[name[0]]
            return self.bucket_of(*name) == bucket and after is not None and self.step - last_step > after

        gone_rows = [name for name, row in model.rows.items() if old(name, row.last_step)]
        gone_counters = [name for name, (_, last_step) in model.counters.items() if old(name, last_step)]
        assert self.stores[store].evict(bucket, self.step) == len(gone_rows) + len(gone_counters)
        for name in gone_rows:
            del model.rows[name]
        for name in gone_counters:
            del model.counters[name]

    @invariant()
    def holds_what_it_should(self) -> None:
        for store, model in zip(self.stores, self.models, strict=True):
            rows, counters = rows_in(store)
            assert not rows.keys() & counters.keys()
            assert rows.keys() == model.rows.keys()
            assert {name: (row.frequency, row.last_step) for name, row in counters.items()} == model.counters
            for name, row in rows.items():
                wanted = model.rows[name]
                assert (row.frequency, row.last_step) == (wanted.frequency, wanted.last_step)
                np.testing.assert_allclose(row.weights, wanted.weights, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(row.slots, wanted.slots, rtol=1e-4, atol=1e-5)
            for table, memory in store.memory().items():
                assert memory.rows == len([name for name in rows if name[0] == table])
                assert memory.counted == len([name for name in counters if name[0] == table])
