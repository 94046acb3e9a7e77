"""The frames between clients and servers: a header of 16 bytes, then a body of numbers and raw arrays.

Everything is little-endian. A body is read without a copy: the arrays that `read_*` answer look into it, so its buffer
must begin at a multiple of 8. Every `read_*` raises MalformedMessage for bytes that do not fit, and nothing else.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastane.model.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview
Parts = list[Buffer]
"""What a body is sent from, piece by piece."""

MAX_BODY_BEFORE_HELLO = 4096
MAX_BODY = 256 << 20
MAX_TABLES = 1 << 16

HEADER_BYTES = 16
PROTOCOL = 1

_MAGIC = 0xE1A5
_U64 = (1 << 64) - 1
_FIELDS = struct.Struct("<HBBII")
_HEADER = struct.Struct("<HBBIII")
_HELLO = struct.Struct("<32sHBxIQII")
_WELCOME = struct.Struct("<II")
_PULL = struct.Struct("<qqII")
_PUSH = struct.Struct("<QqqdII")
_ANSWER = struct.Struct("<II")
_TICK = struct.Struct("<qd")
_JOIN = struct.Struct("<qq")
_BUCKET = struct.Struct("<QII")
_APPLIED = struct.Struct("<II")


class Op(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    """First on every connection: who speaks, and that it holds the token."""
    DEFINE = 2
    PULL = 3
    PUSH = 4
    ASSIGN = 5
    TICK = 6
    """A client has pushed all of a step. Not answered."""
    MAP = 7
    """Asks for the owner map."""
    EVICT = 8
    JOIN = 9
    """The client counts for the staleness bound, from a step on; or asks which step that could be."""
    LEAVE = 10

    DONE = 16
    """The answer to all but a pull; refused positions and the map may be in it."""
    ROWS = 17
    ERROR = 18

    BEGIN = 32
    """Between servers: a bucket's copy begins; forget what you have of it."""
    PAGE = 33
    FORWARD = 34
    """A push or an assignment, as the owner applied it."""
    APPLY = 35
    """The owner applied what it held of a step."""
    COMPLETE = 36
    """All pages have been sent: from now on you are the bucket's backup."""
    TAKE = 37
    """From now on you are the bucket's owner."""
    MEMBERS = 40
    """Who counts for the staleness bound."""
    TAKEN = 41
    """From the new owner to the one before, which is its backup now: whatever follows is the new owner's."""
    RELEASE = 38
    """You are the bucket's backup no longer."""
    ACK = 39
    """All frames up to this number are applied; with REFUSED, some of this one was not, and here is why."""


class Flag(enum.IntFlag):
    """How a frame is to be read."""

    NONE = 0
    REFUSED = 1
    """Of an answer: the server does not own some of the buckets."""
    HOLD = 2
    """Of a push: keep it until every active client has pushed this step."""
    ONLY_NEW = 4
    """Of an assignment: rows that are there stay as they are."""
    VALUES = 8
    """Of a forward: an assignment."""
    COPIED = 16
    """Of a forward: a held push that came before the copy began."""
    KEEP = 32
    """Of a hand-over: the server before stays as the bucket's backup."""
    SCALE = 64
    """Of a push: the learning rate shrinks with the steps that others are ahead."""


class Header(NamedTuple):
    """The first 16 bytes of a frame."""

    op: Op
    flags: Flag
    request: int
    length: int


class Peer(enum.IntEnum):
    """Who opened a connection."""

    CLIENT = 1
    SERVER = 2


@dataclass(frozen=True)
class Hello:
    """Who opened the connection: a client by its random number, or a server by its slot and life."""

    kind: Peer
    number: int
    life: int
    n_buckets: int


@dataclass(frozen=True)
class Keys:
    """The rows that a request is about: `counts[i]` ids of table `tables[i]`, one table after another."""

    tables: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pull:
    """Rows wanted for a step, once every active client has pushed step `wait_for` (-1: now)."""

    step: int
    wait_for: int
    keys: Keys


@dataclass(frozen=True)
class Push:
    """Gradients, or values to assign: for each table in turn its rows one after another."""

    client: int
    sequence: int
    step: int
    weight: float
    keys: Keys
    lrs: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]


def pack_header(op: Op, request: int, length: int, flags: Flag = Flag.NONE) -> bytes:
    """A frame's first 16 bytes."""
    fields = _FIELDS.pack(_MAGIC, op, flags, request, length)
    return fields + zlib.crc32(fields).to_bytes(4, "little")


def read_header(data: Buffer, most: int) -> Header:
    """Check a header; a body above `most` bytes is refused before a byte of it is read. Raises MalformedMessage."""
    if len(data) != HEADER_BYTES:
        raise MalformedMessage(f"a header of {len(data)} bytes")
    magic, op, flags, request, length, crc = _HEADER.unpack(data)
    if magic != _MAGIC or crc != zlib.crc32(memoryview(data)[:12]):
        raise MalformedMessage("not a frame of this protocol")
    try:
        header = Header(Op(op), Flag(flags), request, length)
    except ValueError as error:
        raise MalformedMessage(str(error)) from None
    if length > most:
        raise MalformedMessage(f"a body of {length} bytes is above the limit of {most}")
    return header


def token_digest(token: str) -> bytes:
    """What stands for the token in a hello, so that the token itself is not on the wire."""
    return hmac.new(token.encode(), b"elastane parameter servers", hashlib.sha256).digest()


def write_hello(hello: Hello, token: str) -> Parts:
    """The body of a hello."""
    return [_HELLO.pack(token_digest(token), PROTOCOL, hello.kind, hello.life, hello.number, hello.n_buckets, 0)]


def read_hello(body: Buffer, token: str) -> Hello:
    """Who speaks, if it holds the token. Raises MalformedMessage."""
    if len(body) != _HELLO.size:
        raise MalformedMessage(f"a hello of {len(body)} bytes")
    digest, protocol, kind, life, number, n_buckets, zero = _HELLO.unpack(body)
    if not hmac.compare_digest(digest, token_digest(token)):
        raise MalformedMessage("wrong token")
    if protocol != PROTOCOL or zero != 0:
        raise MalformedMessage(f"protocol {protocol} is not {PROTOCOL}")
    try:
        return Hello(Peer(kind), number, life, n_buckets)
    except ValueError as error:
        raise MalformedMessage(str(error)) from None


def write_welcome(server: int, life: int) -> Parts:
    """The answer to a hello: who listens here."""
    return [_WELCOME.pack(server, life)]


def read_welcome(body: Buffer) -> tuple[int, int]:
    """The server that listens, and its life."""
    if len(body) != _WELCOME.size:
        raise MalformedMessage(f"a welcome of {len(body)} bytes")
    server, life = _WELCOME.unpack(body)
    return server, life


def write_pull(pull: Pull) -> Parts:
    """The body of a pull."""
    keys = pull.keys
    head = _PULL.pack(pull.step, pull.wait_for, len(keys.tables), len(keys.ids))
    return [head, *_write_tables(keys, None), raw(keys.ids)]


def read_pull(body: Buffer) -> Pull:
    """The pull in a body."""
    if len(body) < _PULL.size:
        raise MalformedMessage(f"a pull of {len(body)} bytes")
    step, wait_for, n_tables, n_ids = _PULL.unpack_from(body)
    keys, _, end = _read_keys(body, _PULL.size, n_tables, n_ids, with_lrs=False)
    if end != len(body):
        raise MalformedMessage(f"{len(body) - end} bytes follow a pull")
    return Pull(step, wait_for, keys)


def write_push(push: Push) -> Parts:
    """The body of a push, an assignment, or a forward of one."""
    keys = push.keys
    head = _PUSH.pack(push.client, push.sequence, push.step, push.weight, len(keys.tables), len(keys.ids))
    return [head, *_write_tables(keys, push.lrs), raw(keys.ids), raw(push.values)]


def read_push(body: Buffer) -> Push:
    """The push in a body. Whether its values are as many as its tables' rows need, the reader must check."""
    if len(body) < _PUSH.size:
        raise MalformedMessage(f"a push of {len(body)} bytes")
    client, sequence, step, weight, n_tables, n_ids = _PUSH.unpack_from(body)
    keys, lrs, end = _read_keys(body, _PUSH.size, n_tables, n_ids, with_lrs=True)
    if (len(body) - end) % 4:
        raise MalformedMessage(f"{len(body) - end} bytes are no row of a push")
    if not 0 <= weight < 1e12:
        raise MalformedMessage(f"a push of weight {weight}")
    values = np.frombuffer(body, np.float32, offset=end)
    return Push(client, sequence, step, weight, keys, lrs, values)


def write_refusal(positions: npt.NDArray[np.uint32], changes: bytes) -> Parts:
    """What comes first in an answer with REFUSED: which of the request's ids, and the owners of their buckets."""
    head = _ANSWER.pack(len(positions), len(changes))
    padding = -(len(head) + positions.nbytes + len(changes)) % 8
    return [head, raw(positions), changes, bytes(padding)]


def read_refusal(body: Buffer, n_ids: int) -> tuple[npt.NDArray[np.uint32], bytes, int]:
    """The refused positions, the owners, and where the rest of the answer begins."""
    if len(body) < _ANSWER.size:
        raise MalformedMessage(f"a refusal of {len(body)} bytes")
    n_positions, map_bytes = _ANSWER.unpack_from(body)
    at = _ANSWER.size + 4 * n_positions
    end = at + map_bytes
    rest = end + -end % 8
    if rest > len(body):
        raise MalformedMessage(f"a refusal of {len(body)} bytes is cut")
    positions = np.frombuffer(body, np.uint32, n_positions, _ANSWER.size)
    if n_positions and int(positions.max()) >= n_ids:
        raise MalformedMessage("a refusal of what was not asked for")
    return positions, bytes(memoryview(body)[at:end]), rest


def write_tick(step: int, weight: float) -> Parts:
    """The body of a tick."""
    return [_TICK.pack(step, weight)]


def read_tick(body: Buffer) -> tuple[int, float]:
    """The step and the weight of a tick."""
    if len(body) != _TICK.size:
        raise MalformedMessage(f"a tick of {len(body)} bytes")
    step, weight = _TICK.unpack(body)
    if not 0 <= weight < 1e12:
        raise MalformedMessage(f"a tick of weight {weight}")
    return step, weight


def write_join(version: int, step: int) -> Parts:
    """The body of a JOIN (step -1: it asks), of its answer, or of a LEAVE."""
    return [_JOIN.pack(version, step)]


def read_join(body: Buffer) -> tuple[int, int]:
    """The version of what a client says about itself, and the step."""
    if len(body) != _JOIN.size:
        raise MalformedMessage(f"a join of {len(body)} bytes")
    version, step = _JOIN.unpack(body)
    return version, step


def write_members(members: Mapping[int, tuple[int, int]]) -> Parts:
    """Who counts: for each client the version of what it said, and its first step (-1: it left)."""
    rows = [(client, version, step) for client, (version, step) in members.items()]
    return [struct.pack(f"<{3 * len(rows)}q", *(_signed(number) for row in rows for number in row))]


def read_members(body: Buffer) -> dict[int, tuple[int, int]]:
    """Who counts."""
    if len(body) % 24:
        raise MalformedMessage(f"members in {len(body)} bytes")
    return {client & _U64: (version, step) for client, version, step in struct.iter_unpack("<qqq", body)}


def write_bucket(bucket: int, epoch: int, rest: Buffer = b"") -> Parts:
    """The body of what servers say about one bucket."""
    return [_BUCKET.pack(epoch, bucket, len(rest)), rest]


def read_bucket(body: Buffer, n_buckets: int) -> tuple[int, int, memoryview]:
    """The bucket, its epoch, and what else there is."""
    if len(body) < _BUCKET.size:
        raise MalformedMessage(f"{len(body)} bytes about a bucket")
    epoch, bucket, length = _BUCKET.unpack_from(body)
    if bucket >= n_buckets or epoch >> 63 or length != len(body) - _BUCKET.size:
        raise MalformedMessage(f"bucket {bucket} of {n_buckets}, {length} bytes about it in a body of {len(body)}")
    return bucket, epoch, memoryview(body)[_BUCKET.size :]


def write_applied(clients: Sequence[int], sequences: Sequence[int]) -> bytes:
    """Which push of each client a bucket has had last."""
    return (
        _APPLIED.pack(len(clients), 0)
        + np.array(clients, np.uint64).tobytes()
        + np.array(sequences, np.int64).tobytes()
    )


def read_applied(body: Buffer) -> dict[int, int]:
    """The last sequence of each client."""
    if len(body) < _APPLIED.size:
        raise MalformedMessage(f"sequences in {len(body)} bytes")
    n_clients, zero = _APPLIED.unpack_from(body)
    if zero or len(body) != _APPLIED.size + 16 * n_clients:
        raise MalformedMessage(f"sequences of {n_clients} clients in {len(body)} bytes")
    clients = np.frombuffer(body, np.uint64, n_clients, _APPLIED.size)
    sequences = np.frombuffer(body, np.int64, n_clients, _APPLIED.size + 8 * n_clients)
    return dict(zip(clients.tolist(), sequences.tolist(), strict=True))


def write_notes(pieces: Sequence[bytes]) -> bytes:
    """Some stretches of bytes as one."""
    return b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)


def read_notes(body: bytes) -> list[bytes]:
    """The stretches."""
    pieces = []
    at = 0
    while at < len(body):
        end = at + 8 + int.from_bytes(body[at : at + 8], "little")
        if end > len(body):
            raise MalformedMessage(f"notes of {len(body)} bytes are cut")
        pieces.append(body[at + 8 : end])
        at = end
    return pieces


def write_scales(step: int, scales: dict[int, float]) -> Parts:
    """The body of an APPLY: the share of each client in a step."""
    return [
        _TICK.pack(step, 0.0),
        np.fromiter(scales.keys(), np.uint64, len(scales)).tobytes(),
        np.fromiter(scales.values(), np.float64, len(scales)).tobytes(),
    ]


def read_scales(body: Buffer) -> tuple[int, dict[int, float]]:
    """The step and the share of each client in it."""
    rest = len(body) - _TICK.size
    if rest < 0 or rest % 16:
        raise MalformedMessage(f"the shares of a step in {len(body)} bytes")
    step, _ = _TICK.unpack_from(body)
    clients = np.frombuffer(body, np.uint64, rest // 16, _TICK.size)
    shares = np.frombuffer(body, np.float64, rest // 16, _TICK.size + rest // 2)
    return step, dict(zip(clients.tolist(), shares.tolist(), strict=True))


def _write_tables(keys: Keys, lrs: npt.NDArray[np.float32] | None) -> Parts:
    words = [keys.tables.tobytes(), keys.counts.tobytes()]
    if lrs is not None:
        words.append(lrs.tobytes())
    if len(words) % 2 and len(keys.tables) % 2:
        words.append(bytes(4))
    return [b"".join(words)]


def _read_keys(
    body: Buffer, at: int, n_tables: int, n_ids: int, *, with_lrs: bool
) -> tuple[Keys, npt.NDArray[np.float32], int]:
    words = 3 if with_lrs else 2
    ids_at = at + 4 * words * n_tables
    ids_at += -ids_at % 8
    end = ids_at + 8 * n_ids
    if n_tables > MAX_TABLES or end > len(body):
        raise MalformedMessage(f"{n_ids} ids of {n_tables} tables in {len(body)} bytes")
    tables = np.frombuffer(body, np.uint32, n_tables, at)
    counts = np.frombuffer(body, np.uint32, n_tables, at + 4 * n_tables)
    lrs = np.frombuffer(body, np.float32, n_tables if with_lrs else 0, at + 8 * n_tables if with_lrs else 0)
    if int(counts.sum(dtype=np.uint64)) != n_ids:
        raise MalformedMessage(f"counts of {int(counts.sum(dtype=np.uint64))} rows for {n_ids} ids")
    return Keys(tables, counts, np.frombuffer(body, np.int64, n_ids, ids_at)), lrs, end


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 > 0 else number


def raw(array: npt.NDArray[np.generic]) -> memoryview:
    """The bytes of an array, to be sent as they are."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
