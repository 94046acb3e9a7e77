"""Checkpoints: what is saved comes back, what is torn is noticed, and what does not fit is left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

import elastane
from elastane.checkpoint import files, memory
from elastane.checkpoint.manifest import Manifest
from elastane.model.environment import ENV_MEMORY
from elastane.model.errors import CheckpointMisfit, InvalidInput, StateLost
from elastane.platform.local.shared_memory import SharedMemory
from elastane.torch.replica import TORN, Replica
from elastane.torch.restoring import restore
from elastane.torch.trainer import Trainer

DATA = [torch.randn(4, generator=torch.Generator().manual_seed(number)) for number in range(60)]


class Net(nn.Module):
    """Everything whose exact state matters: moments, statistics, random numbers, a scheduler, a scaler."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(width, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.dropout(self.norm(self.first(features))))
        return answer


def train(
    folder: Path | None = None,
    *,
    until: int | None = None,
    width: int = 8,
    fresh_seed: int = 0,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    **settings: Any,
) -> tuple[Net, list[int]]:
    """Train on each sample once; the answer also has how many steps there were after each batch."""
    torch.manual_seed(fresh_seed)
    model = Net(width)
    if optimizer is None:
        chosen: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        settings["scheduler"] = torch.optim.lr_scheduler.StepLR(chosen, 3)
        settings["grad_scaler"] = torch.amp.GradScaler("cpu", growth_interval=2)
    else:
        chosen = optimizer(model)
    steps = []
    with elastane.join() as job:
        trainer = job.trainer(model, chosen, checkpoint=folder, **settings)
        for batch in job.batches(DATA, 4, shuffle=True):
            trainer.step(model(batch).square().mean())
            steps.append(job.step)
            if job.step == until:
                break
    return model, steps


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def states_equal(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_job_that_was_left_goes_on_to_the_same_end(tmp_path: Path) -> None:
    undisturbed, _ = train()
    _, first = train(tmp_path, until=6)
    model, rest = train(tmp_path, fresh_seed=99)
    assert first + rest == list(range(1, 16))
    assert states_equal(model, undisturbed)


def test_a_job_that_was_finished_has_nothing_to_do(tmp_path: Path) -> None:
    model, _ = train(tmp_path)
    again, steps = train(tmp_path, fresh_seed=99)
    assert not steps
    assert states_equal(model, again)


def test_checkpoints_are_made_every_so_many_steps_and_the_newest_stay(tmp_path: Path) -> None:
    model = Net()
    with elastane.join() as job:
        trainer = job.trainer(model, sgd(model), checkpoint=tmp_path, save_every_steps=4, keep=2)
        for batch in job.batches(DATA, 4):
            trainer.step(model(batch).sum())
            assert steps_of_newest(trainer, tmp_path) == job.step // 4 * 4
    assert saved(tmp_path) == ["00000003", "00000004"]  # Those of steps 12 and, at the end, 15.


def test_checkpoints_are_made_every_so_many_seconds(tmp_path: Path) -> None:
    model = Net()
    with elastane.join() as job:
        trainer = job.trainer(model, sgd(model), checkpoint=tmp_path, save_every_s=1e-9)
        for batch in job.batches(DATA, 4):
            trainer.step(model(batch).sum())
            assert steps_of_newest(trainer, tmp_path) == job.step


def steps_of_newest(trainer: Trainer, folder: Path) -> int:
    """How many steps there were at the newest checkpoint, once it is on disk; 0 if there is none."""
    if trainer._saving._last is not None:
        trainer._saving._last.result(10)
    checkpoint = files.newest([folder])
    return 0 if checkpoint is None else checkpoint.manifest.steps


def test_save_makes_a_checkpoint_wherever_it_is_wanted(tmp_path: Path) -> None:
    model = Net()
    with elastane.join() as job:
        trainer = job.trainer(model, sgd(model))
        for batch in job.batches(DATA, 4):
            trainer.step(model(batch).sum())
            if job.step == 3:
                state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                first, second = trainer.save(tmp_path / "deep" / "one"), trainer.save(str(tmp_path / "two"))
        with pytest.raises(InvalidInput, match="give a folder"):
            trainer.save()
    assert first is not None
    assert second is not None
    assert first.result() == tmp_path / "deep" / "one" / "00000001"
    found = load_file(second.result() / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    assert second.result() == tmp_path / "two" / "00000001"
    load_model(Net(), second.result() / "model.safetensors")
    _, steps = train(tmp_path / "deep" / "one", optimizer=sgd)
    assert steps == list(range(4, 16))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of the model": lambda path: flip(path / "model.safetensors", -5),
    "a bit of the optimizer": lambda path: flip(path / "optimizer.safetensors", 700),
    "a bit of the manifest": lambda path: flip(path / "manifest.json", 300),
    "the end of the model": lambda path: cut(path / "model.safetensors"),
    "the end of the manifest": lambda path: cut(path / "manifest.json"),
    "all of the optimizer": lambda path: (path / "optimizer.safetensors").unlink(),
    "the manifest": lambda path: (path / "manifest.json").write_text("{}"),
}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    train(tmp_path, until=3)
    train(tmp_path, until=5)
    DAMAGES[damage](tmp_path / "00000002")
    _, steps = train(tmp_path, until=5)
    assert steps == [4, 5]
    assert "00000002 is not whole" in caplog.text
    assert saved(tmp_path) == ["00000001", "00000002", "00000003"]
    _, steps = train(tmp_path, until=7)
    assert steps == [6, 7]


def test_a_job_does_not_start_over_where_no_checkpoint_is_whole(tmp_path: Path) -> None:
    train(tmp_path, until=3)
    flip(tmp_path / "00000001" / "model.safetensors", -5)
    with pytest.raises(StateLost, match=r"none of 1 checkpoints in .* give another folder"):
        train(tmp_path)


def test_a_checkpoint_that_does_not_fit_names_the_tensor_and_nothing_is_lost(tmp_path: Path) -> None:
    train(tmp_path, until=3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointMisfit, match=r'"first\.bias" is \[8\] float32 there and \[6\] float32 in the model'):
        train(tmp_path, width=6)
    with pytest.raises(CheckpointMisfit, match="it was saved with optimizer Adam, not SGD"):
        train(tmp_path, optimizer=sgd)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    _, steps = train(tmp_path, until=4)
    assert steps == [4]


def test_a_misfit_changes_no_tensor(tmp_path: Path) -> None:
    train(tmp_path, until=3)
    checkpoint = files.newest([tmp_path])
    assert checkpoint is not None
    model = Net()
    model.last = nn.Linear(8, 2)
    replica = Replica(model, torch.optim.Adam(model.parameters()), None, None, None)
    before = replica.checksum(between_rounds=True)
    with pytest.raises(CheckpointMisfit, match=r"last\.bias"):
        restore(replica, checkpoint)
    assert replica.checksum(between_rounds=True) == before


def test_a_worker_with_only_a_part_of_a_state_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, until=3, optimizer=sgd)
    model = Net()
    with elastane.join() as job:
        trainer = job.trainer(model, sgd(model), checkpoint=tmp_path)
        trainer._replica.rounds = TORN  # As one that was joining when the last of the others died.
        trainer.sync()
        assert job.step == 3


def test_what_unfinished_checkpoints_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "00000004").mkdir(parents=True)
    (tmp_path / "00000004" / "model.safetensors").write_bytes(b"torn")
    train(tmp_path, until=3)
    assert saved(tmp_path) == ["00000005"]


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write_piece", full)
        _, steps = train(tmp_path, save_every_steps=3)
    assert steps == list(range(1, 16))
    assert "no checkpoint was made" in caplog.text
    assert saved(tmp_path) == []


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"save_every_steps": 0}, "save_every_steps: 0 is below 1"),
        ({"save_every_s": 0.0}, "save_every_s: 0 is not above 0"),
        ({"keep": 0}, "keep: 0 is below 1"),
    ]
    for settings, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            train(tmp_path, **settings)
    with pytest.raises(InvalidInput, match="need checkpoint="):
        train(save_every_s=3)


# --- shared memory ---


def test_a_copy_in_shared_memory_is_used_if_it_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_MEMORY, str(tmp_path / "memory"))
    train(tmp_path / "disk", until=3)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", fail_to_write)
        train(tmp_path / "disk", until=5)
    _, steps = train(tmp_path / "disk", until=6)
    assert steps == [6]
    assert saved(tmp_path / "disk") == ["00000001", "00000003"]


def test_a_copy_in_shared_memory_gets_to_disk_though_no_step_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_MEMORY, str(tmp_path / "memory"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", fail_to_write)
        train(tmp_path / "disk", until=5, optimizer=sgd)
    model = Net()
    with elastane.join() as job:
        job.trainer(model, sgd(model), checkpoint=tmp_path / "disk").sync()
        assert job.step == 5
    assert saved(tmp_path / "disk") == ["00000002"]


def fail_to_write(folder: Path, manifest: Manifest, parts: Any) -> Path:
    raise OSError(5, f"cannot write {manifest.number}")


def test_the_last_whole_copy_is_never_written_over(tmp_path: Path) -> None:
    slots = memory.SharedSlots(tmp_path, pinned=False)
    for number in range(1, 6):
        slot = slots.next()
        data = slot.memory("model", 64)
        assert [manifest.number for manifest in sealed(tmp_path)] == ([number - 1] if number > 1 else [])
        data.fill_(number)
        slot.seal(files.describe(number, number, number, {"model": data.numpy().data}, {}))
        slots.next().memory("model", 64).fill_(99)  # A copy that is never finished.
    found = files.newest([tmp_path])
    assert found is not None
    assert found.manifest.number == 5
    assert (found.path / "model.safetensors").read_bytes() == bytes([5]) * 64


def sealed(folder: Path) -> list[Manifest]:
    return [Manifest.from_bytes(path.read_bytes()) for path in folder.glob("*/manifest.json")]


def test_shared_memory_that_is_full_costs_the_copy_there_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv(ENV_MEMORY, str(tmp_path / "memory"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        train(tmp_path / "disk", until=3)
    assert "it ends with this worker" in caplog.text
    assert saved(tmp_path / "disk") == ["00000001"]


def test_an_agent_removes_what_killed_ones_left_in_shared_memory(tmp_path: Path) -> None:
    alive = SharedMemory(tmp_path)
    killed = tmp_path / f"elastane-{os.getuid()}-killed"
    killed.mkdir()
    another = SharedMemory(tmp_path)
    assert alive.path is not None
    assert another.path is not None
    assert not killed.exists()
    assert alive.path.exists()
    for memory_of_job in (alive, another):
        memory_of_job.close()
    assert not list(tmp_path.iterdir())
    assert SharedMemory(tmp_path / "nowhere").path is None
