"""The Brain's database, SQLite and PostgreSQL alike: migrations, rows that are stored once, and what is read back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, insert, inspect, select, text

from elastane.brain.database import begin_as_told, engine_url, migrate, schema_revision
from elastane.brain.runs import KnownRun
from elastane.brain.store import EARLY_WINDOWS, LATE_WINDOWS, Rows, Store, window_values
from elastane.brain.tables import metadata
from elastane.model.brain import Likeness, ReportedWindow
from elastane.model.errors import DatabaseUnavailable, InvalidInput, RequestRefused
from elastane.model.quantity import Memory
from elastane.model.sizing import Change, Decision, JobKind, JobSize, Prediction
from tests.integration.brains import make_report, make_run, make_window

WINDOW_FULL = make_window(
    5.0,
    input_wait_s=0.01,
    pull_s=0.02,
    push_s=0.03,
    sync_s=0.04,
    hottest_share=0.5,
    worker_cpu_used=1.5,
    ps_cpu_used=0.5,
    fixed_global_batch=True,
)
CHANGE = Change(
    50.0, JobSize(2, 1, 1.0, 2.0), JobSize(4, 1, 1.0, 2.0), Prediction(200.0, 150.0, 250.0), 3.0, reason="why"
)


@pytest.fixture
def store(database: str) -> Any:
    opened = Store(database)
    yield opened
    opened.close()


def _engine(database: str) -> Any:
    engine = create_engine(engine_url(database))
    if engine.dialect.name == "sqlite":
        begin_as_told(engine)
    return engine


def _register(store: Store, name: str, started_at: float = 100.0, **more: Any) -> KnownRun:
    (known,) = store.commit([store.register(make_run(name, **more), started_at)])
    assert isinstance(known, KnownRun)
    return known


def _rows(run: KnownRun, *reports: ReportedWindow, sender: int = 7) -> Rows:
    return Rows(tuple(window_values(run.id, sender, number, report) for number, report in enumerate(reports, 1)))


def test_an_empty_database_gets_the_schema_that_the_tables_describe(database: str) -> None:
    Store(database).close()
    engine = _engine(database)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert schema_revision(connection) == "0002"
    engine.dispose()


def test_a_database_of_the_schema_before_keeps_its_rows(database: str) -> None:
    engine = _engine(database)
    migrate(engine, "0001")
    before = MetaData()
    before.reflect(engine)
    run = {"run": "old", "job": "ctr", "user": "ada", "kind": "allreduce", "code": "c0de", "data": "da7a"}
    window = {
        key: value
        for key, value in window_values(1, 7, 1, make_report(5.0, 3)).items()
        if key in before.tables["windows"].columns
    }
    assert "fixed_global_batch" not in window
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(insert(before.tables["runs"]).values(**run, config="{}", started_at=100.0))
        connection.execute(insert(before.tables["windows"]).values(**window))
    engine.dispose()

    store = Store(database)
    old = store.find("old")
    assert old is not None
    assert old.identity == make_run("old", model="")
    assert store.windows_of(old.id) == (make_report(5.0, 3),)
    new = _register(store, "new", 200.0)
    assert [past.run for past in store.like(new, Likeness.CODE_AND_DATA, 10)] == ["old"]
    assert store.like(new, Likeness.USER_AND_MODEL, 10) == ()
    store.close()
    engine = _engine(database)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_migration_that_fails_leaves_the_schema_as_it_was(database: str) -> None:
    engine = _engine(database)
    migrate(engine, "0001")
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(text("CREATE TABLE fits (mine INTEGER)"))
    with pytest.raises(DatabaseUnavailable, match="fits"):
        Store(database)
    with engine.connect() as connection:
        assert schema_revision(connection) == "0001"
        assert "model" not in {column["name"] for column in inspect(connection).get_columns("runs")}
    engine.dispose()


def test_a_database_of_a_newer_elastane_is_refused(database: str) -> None:
    Store(database).close()
    engine = _engine(database)
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseUnavailable, match='at schema "9999", of a newer elastane'):
        Store(database)
    engine.dispose()


def test_brains_that_start_at_once_migrate_once(database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(Store, [database] * 4))
    assert [store.count("runs") for store in stores] == [0] * 4
    for store in stores:
        store.close()


def test_a_row_that_comes_again_is_stored_once(store: Store) -> None:
    run = _register(store, "a")
    reports = [make_report(10.0 * number) for number in range(1, 4)]
    store.commit([_rows(run, *reports[:2])])
    store.commit([_rows(run, *reports), _rows(run, *reports)])
    assert store.windows_of(run.id) == tuple(reports)


def test_the_same_number_of_another_sender_is_another_row(store: Store) -> None:
    run = _register(store, "a")
    store.commit([_rows(run, make_report(10.0), sender=1), _rows(run, make_report(20.0), sender=2)])
    assert len(store.windows_of(run.id)) == 2


def test_every_field_comes_back_as_it_was_told(store: Store) -> None:
    identity = make_run("a", kind=JobKind.PARAMETER_SERVER, config_json='{"a": "\\u0000é"}')
    (run,) = store.commit([store.register(identity, 123.25)])
    full = ReportedWindow(WINDOW_FULL, Memory(2**40), Memory(2**41), step=2**40)
    store.commit([_rows(run, full)])
    assert store.find("a") == run == KnownRun(run.id, identity, 123.25)
    assert store.windows_of(run.id) == (full,)


def test_a_run_that_registers_again_stays_the_same_with_its_earliest_start(store: Store) -> None:
    first = _register(store, "a", 100.0)
    again = _register(store, "a", 103.0, user="eve")
    earlier = _register(store, "a", 90.0)
    assert (again, earlier.started_at) == (first, 90.0)
    assert store.count("runs") == 1


def test_of_a_long_run_the_first_and_the_last_windows_are_read(store: Store) -> None:
    run = _register(store, "a")
    many = EARLY_WINDOWS + LATE_WINDOWS + 50
    store.commit([_rows(run, *(make_report(float(at_s)) for at_s in range(many)))])
    read = [reported.window.at_s for reported in store.windows_of(run.id)]
    assert read == [*range(EARLY_WINDOWS), *range(many - LATE_WINDOWS, many)]


def test_a_plan_is_kept_with_what_came_of_it(store: Store) -> None:
    run = _register(store, "a")
    decision = Decision(CHANGE.after, "why", CHANGE.predicted, before=CHANGE.before)
    (plan,) = store.commit([store.add_plan(run.id, decision, 140.0)])
    assert store.changes_of(run.id) == ()
    store.commit([store.put_outcome(run.id, 1, plan, CHANGE, 150.0)])
    assert store.changes_of(run.id) == (CHANGE,)
    realised = Change(**{**CHANGE.__dict__, "realised_samples_per_s": 180.0, "rolled_back": True})
    store.commit([store.put_outcome(run.id, 1, plan, realised, 160.0)])
    assert store.changes_of(run.id) == (realised,)
    assert store.count("plans") == 1


def test_a_change_that_nobody_planned_is_kept_too_and_once(store: Store) -> None:
    run = _register(store, "a")
    realised = Change(**{**CHANGE.__dict__, "realised_samples_per_s": 190.0})
    store.commit([store.put_outcome(run.id, 1, 0, CHANGE, 150.0)])
    store.commit([store.put_outcome(run.id, 1, 0, realised, 160.0), store.put_outcome(run.id, 2, 0, CHANGE, 160.0)])
    assert store.changes_of(run.id) == (realised, CHANGE)
    store.commit([_rows(run, make_report())])
    other = _register(store, "b")
    (past,) = store.like(other, Likeness.CODE_AND_DATA, 10)
    assert past.relative_errors == pytest.approx([0.05])


def test_a_plan_of_another_run_is_not_touched(store: Store) -> None:
    run, other = _register(store, "a"), _register(store, "b")
    (plan,) = store.commit([store.add_plan(run.id, Decision(CHANGE.after, "why", CHANGE.predicted), 140.0)])
    store.commit([store.put_outcome(other.id, 1, plan, CHANGE, 150.0)])
    assert store.changes_of(run.id) == ()
    assert store.changes_of(other.id) == (CHANGE,)


def test_a_write_that_contradicts_what_is_there_does_not_take_the_others_with_it(store: Store) -> None:
    run = _register(store, "a")
    first, second = store.commit(
        [store.add_plan(run.id, Decision(CHANGE.after, "why", CHANGE.predicted), 140.0) for _ in range(2)]
    )
    answers = store.commit(
        [
            _rows(run, make_report()),
            store.put_outcome(run.id, 1, first, CHANGE, 150.0),
            store.put_outcome(run.id, 1, second, CHANGE, 150.0),  # the number is taken
            store.put_fit(run.id, 3, {"a0": 0.5}, 150.0),
        ]
    )
    assert [type(answer) for answer in answers] == [type(None), type(None), RequestRefused, type(None)]
    assert (store.count("windows"), len(store.changes_of(run.id)), store.count("fits")) == (1, 1, 1)


def test_like_runs_are_of_the_same_kind_newest_first_and_have_windows(store: Store) -> None:
    past = {
        "same-1": make_run("same-1"),
        "same-2": make_run("same-2", user="eve", model="deep"),
        "same-without-windows": make_run("same-without-windows"),
        "other-kind": make_run("other-kind", kind=JobKind.PARAMETER_SERVER),
        "other-data": make_run("other-data", data="other"),
        "other-user": make_run("other-user", data="other", user="eve"),
        "other-model": make_run("other-model", data="other", model="deep"),
    }
    for started_at, (name, identity) in enumerate(past.items()):
        (known,) = store.commit([store.register(identity, float(started_at))])
        if name != "same-without-windows":
            store.commit([_rows(known, make_report())])
    run = _register(store, "now")

    def found(likeness: Likeness, most: int = 10) -> list[str]:
        return [like.run for like in store.like(run, likeness, most)]

    assert found(Likeness.CODE_AND_DATA) == ["same-2", "same-1"]
    assert found(Likeness.CODE_AND_DATA, 1) == ["same-2"]
    assert found(Likeness.USER_AND_MODEL) == ["other-data", "same-1"]
    assert found(Likeness.KIND) == ["other-model", "other-user", "other-data", "same-2", "same-1"]


def test_what_nobody_knows_is_not_the_same(store: Store) -> None:
    for name in ("a", "b"):
        known = _register(store, name, code="", data="", model="")
        store.commit([_rows(known, make_report())])
    assert store.like(known, Likeness.CODE_AND_DATA, 10) == ()
    assert store.like(known, Likeness.USER_AND_MODEL, 10) == ()
    assert len(store.like(known, Likeness.KIND, 10)) == 1


def test_the_end_and_the_fit_are_kept(store: Store, database: str) -> None:
    run = _register(store, "a")
    store.commit([_rows(run, make_report()), store.finish(run.id, "succeeded", 500.0)])
    store.commit([store.put_fit(run.id, 3, {"a0": 0.5}, 510.0)])
    store.commit([store.put_fit(run.id, 3, {"a0": 0.25}, 520.0)])
    engine = _engine(database)
    with engine.connect() as connection:
        tables = metadata.tables
        assert connection.execute(select(tables["runs"].c.exit_reason, tables["runs"].c.finished_at)).one() == (
            "succeeded",
            500.0,
        )
        assert connection.execute(select(tables["fits"].c.parameters)).scalar_one() == '{"a0": 0.25}'
    engine.dispose()


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("mysql://localhost/x", '"mysql" is not supported'),
        ("sqlite://", "only in memory"),
        ("sqlite:///:memory:", "only in memory"),
        ("://x", "no URL"),
        ("/proc/none/brain.sqlite", "cannot be written"),
    ],
)
def test_what_is_no_database_is_refused_by_name(database: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Store(database)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("these are not the bytes of a database" * 100)
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        Store(str(tmp_path / "file"))


def test_a_postgresql_that_is_not_there_is_said_without_its_password() -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        Store("postgresql://ada:secret@127.0.0.1:1/brain")
    assert "secret" not in str(caught.value)
