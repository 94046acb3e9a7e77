"""Runs what is asynchronous for a caller that is not, also for one inside a running event loop, such as a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine's answer."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def iterate(source: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an asynchronous generator, which moves on only when the next one is asked for."""
    runner, end = asyncio.Runner(), object()

    async def step() -> T | object:
        return await anext(source, end)

    with ThreadPoolExecutor(1) as thread:  # One for all steps, as an event loop wants it.
        try:
            while (item := thread.submit(runner.run, step()).result()) is not end:
                yield item  # type: ignore[misc]  # it is not the end
        finally:
            thread.submit(runner.run, source.aclose()).result()
            thread.submit(runner.close).result()
