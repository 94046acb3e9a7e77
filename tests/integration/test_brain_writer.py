"""Writing in groups: many writes in few transactions, acknowledged after their commit, and never more than can wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine

from elastane.brain import writer
from elastane.brain.database import begin_as_told, engine_url
from elastane.brain.runs import KnownRun
from elastane.brain.store import Rows, Store, window_values
from elastane.brain.writer import GroupCommit
from elastane.model.errors import DatabaseUnavailable, RequestRefused
from tests.integration.brains import make_report, make_run, until


@contextmanager
def held(database: str) -> Iterator[None]:
    """Nobody else can write to the database meanwhile."""
    engine = create_engine(engine_url(database))
    if engine.dialect.name == "sqlite":
        begin_as_told(engine)
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("LOCK TABLE runs, windows IN EXCLUSIVE MODE"))
        yield
    engine.dispose()


@pytest.fixture
def commits() -> Iterator[list[Any]]:
    """Every transaction that was committed."""
    seen: list[Any] = []

    def see(connection: Any) -> None:
        seen.append(connection)

    event.listen(Engine, "commit", see)
    yield seen
    event.remove(Engine, "commit", see)


async def test_what_comes_while_one_is_written_is_written_together(
    database: str, commits: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 50)
    store = Store(database)
    group = GroupCommit(store)
    run = await group.write(store.register(make_run("a"), 0.0))
    del commits[:]
    with held(database):
        writing = [
            asyncio.create_task(group.write(Rows((window_values(run.id, 7, number, make_report()),))))
            for number in range(1, 52)
        ]
        await asyncio.sleep(0)  # All have asked: the first is being written soon, fifty wait.
        await until(writing[-1].done)
        with pytest.raises(DatabaseUnavailable, match="50 writes wait already; come again"):
            await writing.pop()
        assert not any(task.done() for task in writing)
        assert store.count("windows") == 0
    await asyncio.gather(*writing)
    assert store.count("windows") == 50
    assert len(commits) <= 4
    await group.close()
    store.close()


async def test_close_writes_what_waits(database: str) -> None:
    store = Store(database)
    group = GroupCommit(store)
    writing = [asyncio.create_task(group.write(store.register(make_run(str(number)), 0.0))) for number in range(20)]
    await asyncio.sleep(0)
    await group.close()
    assert store.count("runs") == 20
    await asyncio.gather(*writing)
    store.close()


async def test_who_went_away_does_not_stop_the_others(database: str) -> None:
    store = Store(database)
    group = GroupCommit(store)
    with held(database):
        gone, stays = (asyncio.create_task(group.write(store.register(make_run(name), 0.0))) for name in "ab")
        await asyncio.sleep(0)
        gone.cancel()
    assert (await stays).identity == make_run("b")
    await group.close()
    store.close()


async def test_a_refusal_is_the_callers_alone(database: str) -> None:
    store = Store(database)
    group = GroupCommit(store)
    bad = group.write(store.put_fit(999, 1, {}, 0.0))  # of a run that is not there
    good = group.write(store.register(make_run("a"), 0.0))
    answers: Any = await asyncio.gather(bad, good, return_exceptions=True)
    refusal, known = answers
    assert isinstance(refusal, RequestRefused)
    assert isinstance(known, KnownRun)
    await group.close()
    store.close()
