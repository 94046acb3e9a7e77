"""Journal: what the rules of a job were told, so that a master that comes after this one can go on from there.

The rules in `core/` are state machines: the same calls in the same order lead to the same state. So the journal is a
list of calls, each written before anybody hears of what followed from it; a new master makes them once more. Now and
then the list is replaced by the states that it leads to.

A line is a checksum and a JSON array: the job's time, the name of the rules, the method, and its arguments. The last
line may be torn, when the master was killed in the middle of it: then nobody has heard of it, and it is left out.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from pydantic import TypeAdapter

from elastane.core.checkpoint_handover import CheckpointHandover
from elastane.core.evaluation import Evaluations
from elastane.core.lockstep import StepLedger
from elastane.core.nodes import NodeGroup
from elastane.core.presence import Presence
from elastane.core.ps_cluster import PSCluster
from elastane.core.shards import ShardLedger
from elastane.core.sizing_record import SizingRecord
from elastane.core.world import Rendezvous
from elastane.model.errors import JournalDamaged

COMPACT_AFTER = 10_000
"""How many calls are kept before states take their place."""

_SNAPSHOT = "snapshot"

_TOLD: dict[type, frozenset[str]] = {
    NodeGroup: frozenset(
        {
            "scale_to",
            "drain",
            "retire_to",
            "grant",
            "retire",
            "twin",
            "succeed",
            "relieve",
            "remove",
            "stop",
            "fail",
            "running",
            "preempted",
            "exited",
            "launch_due",
        },
    ),
    Rendezvous: frozenset(
        {
            "join",
            "leave",
            "lost",
            "broken",
            "ready",
            "moved",
            "completed",
            "close",
            "narrow",
            "set_target",
            "tick",
            "resume",
        },
    ),
    Presence: frozenset({"arrived", "gone"}),
    ShardLedger: frozenset({"lease", "commit", "give_back", "worker_lost", "expire"}),
    StepLedger: frozenset({"report"}),
    PSCluster: frozenset(
        {
            "roster",
            "here",
            "away",
            "learned",
            "answered",
            "link_lost",
            "failed",
            "worker_here",
            "worker_away",
            "worker_ended",
            "confirmed",
            "rehome",
            "hold",
            "release",
            "saved",
            "tick",
            "resume",
        },
    ),
    SizingRecord: frozenset(
        {"named", "entered", "observed", "began", "settled", "changed_by_others", "said", "pause", "killed_for_memory"}
    ),
    CheckpointHandover: frozenset({"set_servers", "join", "left", "reached", "saved", "restored"}),
    Evaluations: frozenset({"begin", "tick", "taken", "evaluated", "training_ended", "no_final", "exported"}),
}
"""The methods that change a state. A call that raises has changed nothing, and is not written."""


class Rules(Protocol):
    """A state machine of `core/`."""

    def snapshot(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any], now: float) -> None: ...


R = TypeVar("R", bound=Rules)


class Journal:
    """The journal of one job, in a file; without one nothing is written, and nothing outlives the master."""

    def __init__(self, path: Path | None = None, compact_after: int = COMPACT_AFTER) -> None:
        self._path = path
        self._compact_after = compact_after
        self._watched: dict[str, tuple[Rules, list[Any] | None]] = {}
        self._entries: dict[str, list[list[Any]]] = {}
        self._since_compaction = 0
        self._last_time = 0.0
        self.resumed = path is not None and path.exists() and self._read(path)
        """Whether there was a master before."""
        self.on_line: list[Callable[[bytes], None]] = []
        self.on_compacted: list[Callable[[], None]] = []
        """Called when the journal has begun anew, with states in place of calls."""
        self._start = time.monotonic()
        self._file = -1 if path is None else _open(path)

    def clock(self) -> float:
        """The job's time: it goes on where the master before left off."""
        return self._last_time + time.monotonic() - self._start

    @property
    def names(self) -> list[str]:
        """The rules that were written about, with the description that they were first watched with."""
        return list(self._entries)

    def description_of(self, name: str) -> Any:
        """What these rules were first watched with."""
        return self._entries[name][0][3]

    def watch(self, name: str, rules: R, description: Any = None) -> R:
        """The same rules in the state that the journal leads to, with every later call written down.

        `description` is kept: whoever comes after may need it to make these rules anew.
        """
        entries = self._entries.pop(name, None)
        if entries is None:
            self._append(name, "watch", [description])
        else:
            for _, _, method, *arguments in entries:
                _replay(rules, method, arguments)
        self._watched[name] = (rules, description)
        return cast("R", _Watched(rules, functools.partial(self._append, name)))

    def whole(self) -> bytes:
        """All lines that there are."""
        return b"" if self._path is None else self._path.read_bytes()

    def written(self) -> os.stat_result | None:
        """The file's length and times; None if there is no file."""
        return None if self._file < 0 else os.fstat(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, name: str, method: str, arguments: list[Any]) -> None:
        if self._file < 0:
            return
        # The system has it now: it outlives this process, whatever comes. More is not asked, for with the machine
        # the nodes would be gone too.
        line = _line([self.clock(), name, method, *arguments])
        os.write(self._file, line)
        for callback in self.on_line:
            callback(line)
        self._since_compaction += 1
        if self._path is not None and self._since_compaction >= self._compact_after and not self._entries:
            self._compact(self._path)

    def _compact(self, path: Path) -> None:
        beside = path.with_suffix(".new")
        beside.unlink(missing_ok=True)
        file = _open(beside)
        now = self.clock()
        for name, (rules, description) in self._watched.items():
            os.write(file, _line([now, name, "watch", description]))
            os.write(file, _line([now, name, _SNAPSHOT, rules.snapshot(), now]))
        beside.rename(path)
        os.close(self._file)
        self._file = file
        self._since_compaction = 0
        for callback in self.on_compacted:
            callback()

    def _read(self, path: Path) -> bool:
        good = 0
        for entry, length in _entries(path.read_bytes()):
            self._last_time, name = entry[0], entry[1]
            self._entries.setdefault(name, []).append(entry)
            self._since_compaction += 1
            good += length
        os.truncate(path, good)
        return good > 0


class _Watched:
    """Stands for rules, and writes down what they are told."""

    def __init__(self, rules: Rules, append: Callable[[str, list[Any]], None]) -> None:
        self._rules = rules
        for name in next(_TOLD[kind] for kind in type(rules).__mro__ if kind in _TOLD):
            setattr(self, name, _writing(getattr(rules, name), append))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rules, name)


def _writing(method: Callable[..., Any], append: Callable[[str, list[Any]], None]) -> Callable[..., Any]:
    adapters = _adapters(method)

    def told(*arguments: Any) -> Any:
        answer = method(*arguments)
        append(method.__name__, [_plain(a, v) for a, v in zip(adapters, arguments, strict=False)])
        return answer

    return told


def _plain(adapter: TypeAdapter[Any] | None, value: Any) -> Any:
    return value if adapter is None else adapter.dump_python(value, mode="json")


def _replay(rules: Rules, method: str, arguments: list[Any]) -> None:
    if method == "watch":
        return
    if method == _SNAPSHOT:
        rules.load(*arguments)
        return
    target = getattr(rules, method)
    target(*(v if a is None else a.validate_python(v) for a, v in zip(_adapters(target), arguments, strict=False)))


@functools.cache
def _adapters_of(function: Callable[..., Any]) -> tuple[TypeAdapter[Any] | None, ...]:
    hints = inspect.get_annotations(function, eval_str=True)
    kinds = [hints[name] for name in inspect.signature(function).parameters if name != "self"]
    return tuple(None if _is_plain(kind) else TypeAdapter(kind) for kind in kinds)


def _adapters(method: Callable[..., Any]) -> tuple[TypeAdapter[Any] | None, ...]:
    return _adapters_of(getattr(method, "__func__", method))


def _is_plain(kind: Any) -> bool:
    """Whether values of this type are JSON as they are."""
    kind = getattr(kind, "__supertype__", kind)
    return kind in (str, int, float, bool)


def last_time(lines: bytes) -> float:
    """The job's time in the last whole line; -1 if there is none. Raises JournalDamaged."""
    return max((entry[0] for entry, _ in _entries(lines)), default=-1.0)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _line(entry: list[Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _entries(data: bytes) -> Iterator[tuple[list[Any], int]]:
    """The entries with the lengths of their lines. Raises JournalDamaged unless only the end is torn."""
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            return
        checksum, _, text = line[:-1].partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            raise JournalDamaged(f"the journal is damaged in line {number}: its checksum does not fit")
        entry: list[Any] = json.loads(text)
        yield entry, len(line)
