"""Manifest: what makes a folder of files a checkpoint. It names every file with its size and checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

FORMAT = 1


class NotWhole(Exception):
    """A checkpoint, or its manifest, that is torn, altered, or of a later version."""


@dataclass(frozen=True)
class SavedFile:
    """A file's size and the CRC-32 of its content."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """One checkpoint. Of two, the one with the higher number was made later, whatever their steps."""

    number: int
    rounds: int
    steps: int
    files: Mapping[str, SavedFile]
    rest: Mapping[str, Any]
    """All of the state that is not in the files."""

    def to_bytes(self) -> bytes:
        content = {
            "format": FORMAT,
            "number": self.number,
            "rounds": self.rounds,
            "steps": self.steps,
            "files": {name: [file.bytes, file.crc32] for name, file in self.files.items()},
            "rest": self.rest,
        }
        text = json.dumps(content)
        return json.dumps({"crc32": zlib.crc32(text.encode()), "content": text}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises NotWhole."""
        try:
            outer = json.loads(data)
            text = outer["content"]
            if zlib.crc32(text.encode()) != outer["crc32"]:
                raise NotWhole("its manifest does not have the checksum that it says")
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise NotWhole(f"its format {content['format']} is not {FORMAT}; use the version that saved it")
            files = {name: SavedFile(size, crc32) for name, (size, crc32) in content["files"].items()}
            return cls(content["number"], content["rounds"], content["steps"], files, content["rest"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotWhole(f"its manifest cannot be read: {error}") from None
