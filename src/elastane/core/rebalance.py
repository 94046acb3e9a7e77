"""Which buckets move: so that each server has its share, and as few as possible change their place.

A placement is a list: the server of each bucket, None for one that has no place yet.
"""

from __future__ import annotations

from collections.abc import Sequence

TOLERANCE = 0.25
"""A server is hot if it has so much more load than the mean."""


def even(placement: Sequence[int | None], servers: Sequence[int]) -> list[int]:
    """A placement on these servers, as many buckets on each as can be, which moves as few as that needs."""
    held: dict[int, list[int]] = {server: [] for server in servers}
    homeless: list[int] = []
    for bucket, server in enumerate(placement):
        (homeless if server is None or server not in held else held[server]).append(bucket)
    share, more = divmod(len(placement), len(servers))
    # Those who have the most keep one more, where not all can have the same.
    by_size = sorted(servers, key=lambda server: (-len(held[server]), server))
    quota = {server: share + (place < more) for place, server in enumerate(by_size)}
    for server, buckets in held.items():
        homeless += buckets[quota[server] :]
        del buckets[quota[server] :]
    homeless.sort()
    for server, buckets in held.items():
        missing = quota[server] - len(buckets)
        buckets.extend(homeless[:missing])
        del homeless[:missing]
    found = {bucket: server for server, buckets in held.items() for bucket in buckets}
    return [found[bucket] for bucket in range(len(placement))]


def by_load(
    placement: Sequence[int], servers: Sequence[int], loads: Sequence[float], tolerance: float = TOLERANCE
) -> list[int]:
    """A placement without a hot server, or with one less hot. Unless a server is hot it is the same placement.

    Each move takes the largest bucket that does not make its new place the hotter one: so it takes few.
    """
    placed = list(placement)
    on = {server: [bucket for bucket, owner in enumerate(placed) if owner == server] for server in servers}
    load = {server: sum(loads[bucket] for bucket in buckets) for server, buckets in on.items()}
    limit = (1 + tolerance) * sum(load.values()) / len(servers)
    for _ in placed:
        hottest = max(servers, key=lambda server: (load[server], -server))
        coldest = min(servers, key=lambda server: (load[server], server))
        room = (load[hottest] - load[coldest]) / 2
        fitting = [bucket for bucket in on[hottest] if 0 < loads[bucket] <= room]
        if load[hottest] <= limit or not fitting:
            break
        bucket = max(fitting, key=lambda bucket: (loads[bucket], -bucket))
        on[hottest].remove(bucket)
        on[coldest].append(bucket)
        load[hottest] -= loads[bucket]
        load[coldest] += loads[bucket]
        placed[bucket] = coldest
    return placed


def backups(placement: Sequence[int], present: Sequence[int | None], servers: Sequence[int]) -> list[int | None]:
    """A backup for each bucket, on another server than its own; None if there is no other.

    A backup that is in order stays, unless its server has more than its share of them.
    """
    if len(servers) < 2:
        return [None] * len(placement)
    share = -(-len(placement) // len(servers))
    burden = dict.fromkeys(servers, 0)
    placed: list[int | None] = [None] * len(placement)
    for bucket, server in enumerate(present):
        if server is not None and server in burden and server != placement[bucket] and burden[server] < share:
            placed[bucket] = server
            burden[server] += 1
    for bucket, owner in enumerate(placement):
        if placed[bucket] is None:
            chosen = min((server for server in servers if server != owner), key=lambda server: (burden[server], server))
            placed[bucket] = chosen
            burden[chosen] += 1
    return placed
