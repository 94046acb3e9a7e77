"""The Brain's database: SQLite in a file, or PostgreSQL. Plain functions that block; `writer` calls them in a thread.

All writing goes through `commit`, many writes to a transaction. A write may be repeated without harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, create_engine, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from elastane.brain.database import begin_as_told, engine_url, migrate, prepare_sqlite
from elastane.brain.runs import KnownRun, PastRun
from elastane.brain.tables import fits, plans, runs, windows
from elastane.model.brain import Likeness, ReportedWindow, RunIdentity
from elastane.model.errors import DatabaseUnavailable, RequestRefused
from elastane.model.quantity import Memory
from elastane.model.sizing import Change, Decision, JobKind, JobSize, Prediction, Window

EARLY_WINDOWS, LATE_WINDOWS = 300, 100
"""Of a run with more, so many of its first, when it looks for its size, and of its last are read."""

Write = Callable[[Connection], Any]
"""Something to write inside a transaction; its result is the caller's answer."""


@dataclass(frozen=True)
class Rows:
    """A report's rows; those of many reports are written in one statement."""

    values: tuple[dict[str, Any], ...] = field(repr=False)


class Store:
    """An open database, at its newest schema."""

    def __init__(self, database: str) -> None:
        """Open, make or migrate it. Raises InvalidInput for what is no database, DatabaseUnavailable."""
        self._engine = _open(database)
        try:
            with _translated():
                migrate(self._engine)
        except DatabaseUnavailable:
            self._engine.dispose()
            raise
        self._insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert

    def close(self) -> None:
        self._engine.dispose()

    def commit(self, writes: Sequence[Write | Rows]) -> list[Any]:
        """Write all in one transaction, rows first; the answers of each. Raises DatabaseUnavailable, and wrote nothing.

        Rows that are there already are left as they are. A write that contradicts what is there is answered by a
        RequestRefused, and does not take the others with it.
        """
        rows = [row for write in writes if isinstance(write, Rows) for row in write.values]
        answers: list[Any] = []
        with _translated(), self._writing() as connection:
            if rows:
                stored_once = self._insert(windows).on_conflict_do_nothing(
                    index_elements=["run_id", "sender", "number"]
                )
                connection.execute(stored_once, rows)
            for write in writes:
                answers.append(None if isinstance(write, Rows) else _written(write, connection))
        return answers

    def register(self, identity: RunIdentity, started_at: float) -> Write:
        """Answers the KnownRun. A run that is known keeps what it is, and the earliest start that was told."""
        values = {
            "run": identity.run,
            "job": identity.job,
            "user": identity.user,
            "model": identity.model,
            "kind": str(identity.kind),
            "code": identity.code,
            "data": identity.data,
            "config": identity.config_json,
            "started_at": started_at,
        }

        def write(connection: Connection) -> KnownRun:
            connection.execute(self._insert(runs).values(values).on_conflict_do_nothing(index_elements=["run"]))
            known = runs.c.run == identity.run
            connection.execute(update(runs).where(known, runs.c.started_at > started_at).values(started_at=started_at))
            return _known_run(connection.execute(select(runs).where(known)).one())

        return write

    def add_plan(self, run_id: int, decision: Decision, planned_at: float) -> Write:
        """Answers the plan's number."""
        values = {
            "run_id": run_id,
            "by_brain": True,
            "planned_at": planned_at,
            **(_size_values(decision.before, "before_") if decision.before else {}),
            **_size_values(decision.size, "after_"),
            **_prediction_values(decision.prediction),
            "reason": decision.reason,
        }

        def write(connection: Connection) -> int:
            (number,) = connection.execute(plans.insert().values(values)).inserted_primary_key or (0,)
            return int(number)

        return write

    def put_outcome(self, run_id: int, number: int, plan: int, change: Change, told_at: float) -> Write:
        """What came of the run's change of this number."""
        made = {
            "made_at_s": change.at_s,
            "cost_s": change.cost_s,
            "realised_samples_per_s": change.realised_samples_per_s,
            "rolled_back": change.rolled_back,
        }
        wanted = {
            "run_id": run_id,
            "number": number,
            "by_brain": False,
            "planned_at": told_at,
            **_size_values(change.before, "before_"),
            **_size_values(change.after, "after_"),
            **_prediction_values(change.predicted),
            "reason": change.reason,
        }

        def write(connection: Connection) -> None:
            if plan:
                mine = and_(plans.c.id == plan, plans.c.run_id == run_id)
                if connection.execute(update(plans).where(mine).values(number=number, **made)).rowcount:
                    return
            # Nobody's plan, or one of a database before this one.
            connection.execute(
                self._insert(plans)
                .values(**wanted, **made)
                .on_conflict_do_update(index_elements=["run_id", "number"], set_=made)
            )

        return write

    def put_fit(self, run_id: int, observations: int, parameters: dict[str, float], fitted_at: float) -> Write:
        """The model's parameters from so many observations; the newest fit of as many stays."""
        text = json.dumps(parameters)

        def write(connection: Connection) -> None:
            connection.execute(
                self._insert(fits)
                .values(run_id=run_id, observations=observations, fitted_at=fitted_at, parameters=text)
                .on_conflict_do_update(
                    index_elements=["run_id", "observations"], set_={"fitted_at": fitted_at, "parameters": text}
                )
            )

        return write

    def finish(self, run_id: int, exit_reason: str, finished_at: float) -> Write:
        def write(connection: Connection) -> None:
            connection.execute(
                update(runs).where(runs.c.id == run_id).values(finished_at=finished_at, exit_reason=exit_reason)
            )

        return write

    def find(self, run: str) -> KnownRun | None:
        with self._reading() as connection:
            found = connection.execute(select(runs).where(runs.c.run == run)).one_or_none()
        return None if found is None else _known_run(found)

    def windows_of(self, run_id: int) -> tuple[ReportedWindow, ...]:
        """A run's first and last windows, oldest first."""
        with self._reading() as connection:
            return _windows_of(connection, run_id)

    def changes_of(self, run_id: int) -> tuple[Change, ...]:
        """The changes that the run has made, oldest first."""
        made = select(plans).where(plans.c.run_id == run_id, plans.c.made_at_s.is_not(None))
        with self._reading() as connection:
            return tuple(_change(row) for row in connection.execute(made.order_by(plans.c.made_at_s, plans.c.id)))

    def like(self, run: KnownRun, likeness: Likeness, most: int) -> tuple[PastRun, ...]:
        """The newest runs that are so like this one and have windows; always of its kind, whose model is another."""
        if not _can_be_like(run.identity, likeness):
            return ()
        has_windows = exists().where(windows.c.run_id == runs.c.id)
        found = (
            select(runs)
            .where(_is_like(run.identity, likeness), runs.c.kind == str(run.identity.kind), runs.c.id != run.id)
            .where(has_windows)
            .order_by(runs.c.started_at.desc())
            .limit(most)
        )
        with self._reading() as connection:
            return tuple(
                PastRun(
                    run=row.run,
                    started_at=row.started_at,
                    exit_reason=row.exit_reason,
                    windows=_windows_of(connection, row.id),
                    relative_errors=_relative_errors(connection, row.id),
                )
                for row in connection.execute(found).all()
            )

    def count(self, table: str) -> int:
        """How many rows a table has."""
        with self._reading() as connection:
            counted = {"runs": runs, "windows": windows, "plans": plans, "fits": fits}[table]
            return connection.execute(select(func.count()).select_from(counted)).scalar_one()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _translated(), self._engine.connect() as connection:
            yield connection


def window_values(run_id: int, sender: int, number: int, reported: ReportedWindow) -> dict[str, Any]:
    """A row of `windows`."""
    window = reported.window
    return {
        "run_id": run_id,
        "sender": sender,
        "number": number,
        "at_s": window.at_s,
        "duration_s": window.duration_s,
        **_size_values(window.size),
        "batch_size": window.batch_size,
        "samples_per_s": window.samples_per_s,
        "step_s": window.step_s,
        "input_wait_s": window.input_wait_s,
        "pull_s": window.pull_s,
        "push_s": window.push_s,
        "sync_s": window.sync_s,
        "hottest_share": window.hottest_share,
        "worker_cpu_used": window.worker_cpu_used,
        "ps_cpu_used": window.ps_cpu_used,
        "worker_memory_bytes": None if reported.worker_memory is None else reported.worker_memory.bytes,
        "ps_memory_bytes": None if reported.ps_memory is None else reported.ps_memory.bytes,
        "step": reported.step,
        "fixed_global_batch": window.fixed_global_batch,
    }


def _open(database: str) -> Engine:
    url = engine_url(database)
    if url.get_backend_name() == "sqlite":
        prepare_sqlite(url)
        # Waiting for another process's transaction is what its time-out is for.
        engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False})
        begin_as_told(engine)
        return engine
    # Connections that the database closed meanwhile, as when it was restarted, are noticed before they are used.
    return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5})


def _written(write: Write, connection: Connection) -> Any:
    try:
        with connection.begin_nested():
            return write(connection)
    except IntegrityError as error:
        return RequestRefused(f"this contradicts what is stored: {str(error.orig).strip().splitlines()[0]}")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise DatabaseUnavailable(f"the database cannot be used: {str(error.orig).strip()}") from error
    except SQLAlchemyError as error:
        raise DatabaseUnavailable(f"the database cannot be used: {error}") from error


def _can_be_like(run: RunIdentity, likeness: Likeness) -> bool:
    """What nobody knows of two runs is not the same in both."""
    match likeness:
        case Likeness.CODE_AND_DATA:
            return bool(run.code)
        case Likeness.USER_AND_MODEL:
            return bool(run.model)
        case Likeness.KIND:
            return True


def _is_like(run: RunIdentity, likeness: Likeness) -> Any:
    match likeness:
        case Likeness.CODE_AND_DATA:
            return and_(runs.c.code == run.code, runs.c.data == run.data)
        case Likeness.USER_AND_MODEL:
            return and_(runs.c.user == run.user, runs.c.model == run.model)
        case Likeness.KIND:
            return runs.c.kind == str(run.kind)


def _windows_of(connection: Connection, run_id: int) -> tuple[ReportedWindow, ...]:
    of_run: Select[Any] = select(windows).where(windows.c.run_id == run_id)
    early = connection.execute(of_run.order_by(windows.c.at_s).limit(EARLY_WINDOWS)).all()
    late: Sequence[Row[Any]] = ()
    if len(early) == EARLY_WINDOWS:
        after = of_run.where(windows.c.at_s > early[-1].at_s)
        late = connection.execute(after.order_by(windows.c.at_s.desc()).limit(LATE_WINDOWS)).all()[::-1]
    return tuple(_reported(row) for row in (*early, *late))


def _relative_errors(connection: Connection, run_id: int) -> tuple[float, ...]:
    known = select(plans.c.predicted_samples_per_s, plans.c.realised_samples_per_s).where(
        plans.c.run_id == run_id, plans.c.realised_samples_per_s > 0, plans.c.predicted_samples_per_s > 0
    )
    return tuple(abs(realised / predicted - 1) for predicted, realised in connection.execute(known))


def _known_run(row: Row[Any]) -> KnownRun:
    identity = RunIdentity(
        run=row.run,
        job=row.job,
        user=row.user,
        kind=JobKind(row.kind),
        model=row.model,
        code=row.code,
        data=row.data,
        config_json=row.config,
    )
    return KnownRun(row.id, identity, row.started_at)


def _reported(row: Row[Any]) -> ReportedWindow:
    return ReportedWindow(
        window=Window(
            at_s=row.at_s,
            duration_s=row.duration_s,
            size=JobSize(row.workers, row.ps, row.worker_cpu, row.ps_cpu),
            batch_size=row.batch_size,
            samples_per_s=row.samples_per_s,
            step_s=row.step_s,
            input_wait_s=row.input_wait_s,
            pull_s=row.pull_s,
            push_s=row.push_s,
            sync_s=row.sync_s,
            hottest_share=row.hottest_share,
            worker_cpu_used=row.worker_cpu_used,
            ps_cpu_used=row.ps_cpu_used,
            fixed_global_batch=row.fixed_global_batch,
        ),
        worker_memory=None if row.worker_memory_bytes is None else Memory(row.worker_memory_bytes),
        ps_memory=None if row.ps_memory_bytes is None else Memory(row.ps_memory_bytes),
        step=row.step,
    )


def _change(row: Row[Any]) -> Change:
    after = JobSize(row.after_workers, row.after_ps, row.after_worker_cpu, row.after_ps_cpu)
    before = after
    if row.before_workers is not None:
        before = JobSize(row.before_workers, row.before_ps, row.before_worker_cpu, row.before_ps_cpu)
    return Change(
        at_s=row.made_at_s,
        before=before,
        after=after,
        predicted=Prediction(row.predicted_samples_per_s, row.predicted_low, row.predicted_high),
        cost_s=row.cost_s,
        realised_samples_per_s=row.realised_samples_per_s,
        rolled_back=row.rolled_back,
        reason=row.reason,
    )


def _size_values(size: JobSize, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}workers": size.workers,
        f"{prefix}ps": size.ps,
        f"{prefix}worker_cpu": size.worker_cpu,
        f"{prefix}ps_cpu": size.ps_cpu,
    }


def _prediction_values(prediction: Prediction) -> dict[str, Any]:
    return {
        "predicted_samples_per_s": prediction.samples_per_s,
        "predicted_low": prediction.low,
        "predicted_high": prediction.high,
    }
