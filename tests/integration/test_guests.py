"""Plain scripts as guests of a master that was started alone."""

from __future__ import annotations

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastane.master_client import MasterClient
from elastane.model.errors import DatasetMismatch, InvalidInput, RequestRefused
from elastane.model.ids import NodeName
from elastane.model.world import Place
from elastane.worker.attendant import Attendant
from elastane.worker.door import Door
from elastane.worker.gathering import GatheringMember
from tests.integration.guests import LoneMaster
from tests.integration.harness import ROOT, TIMEOUT_S, Jobs, every_sample_once

GUEST = Path(__file__).with_name("guest_script.py")


def test_guests_share_data_and_a_world_and_one_that_dies_is_not_missed(jobs: Jobs) -> None:
    with LoneMaster(jobs) as master:
        died = jobs.folder / "died"
        dies = ("--kill-at=2", f"--marker={died}")
        with (
            master.guest(GUEST, "--samples=300", "--members=2", f"--after={died}", ELASTANE_NODE="guest-one") as one,
            master.guest(GUEST, "--samples=300", "--members=2", *dies, ELASTANE_NODE="guest-two") as two,
        ):
            assert two.wait() == -9
            assert one.wait() == 0, one.output
        assert "peers=guest-one:1,guest-two:1" in one.output
        assert master.committed() == every_sample_once(300)
        assert {event["node"] for event in master.events("shard_returned")} == {"guest-two"}
        assert [event["reason"] for event in master.events("node_ended", node="two")] == ["killed"]
        status = json.loads(jobs.command("status", "job", "--json").stdout)
        assert {node["name"]: node["status"] for node in status["nodes"]} == {
            "guest-one": "succeeded",
            "guest-two": "failed",
        }


def test_members_find_each_other_though_one_has_left_before_the_other_moved(jobs: Jobs) -> None:
    has_left = threading.Event()

    class Late(Attendant):
        def world_moved(self, version: int, rounds: int, checksum: str) -> None:
            assert has_left.wait(TIMEOUT_S)
            super().world_moved(version, rounds, checksum)

    def gather(link: Attendant) -> tuple[GatheringMember, Place]:
        link.start()
        member = GatheringMember(link, min_size=1, max_size=2)
        return member, member.gather(lambda place: {f"name/{place.rank}": str(place.rank).encode()}, TIMEOUT_S)

    with LoneMaster(jobs, "--workers=1:2") as master, ThreadPoolExecutor() as threads:
        token = master.token_file.read_text().strip()
        late = Late(Door(master.address, token, NodeName("late")))
        leaves = Attendant(Door(master.address, token, NodeName("leaves")))
        gathering = threads.submit(gather, late)
        gather(leaves)
        leaves.close(preempted=False)
        master.read_until("leaves has said goodbye")
        master.read_until("is coming, of 1 workers")
        has_left.set()
        member, place = gathering.result(TIMEOUT_S)
        assert [member.find(place, f"name/{rank}") for rank in range(place.size)] == [b"0", b"1"]
        late.close(preempted=False)


def test_a_guest_that_fails_gives_its_shard_back_with_its_error(jobs: Jobs) -> None:
    with LoneMaster(jobs) as master:
        with master.guest(GUEST, "--samples=30", "--raise-at=1") as guest:
            assert guest.wait() == 1
        errors = [event["error"] for event in master.events("shard_returned") if event["error"]]
        assert errors == ["ValueError: planted"]
        (ended,) = master.events("node_ended")
        assert ended["reason"] == "preempted"


def test_a_guest_that_waits_hears_of_the_jobs_end(jobs: Jobs) -> None:
    with LoneMaster(jobs, "--workers=2") as master:
        with master.guest(GUEST, "--members=2", ELASTANE_NODE="guest-one") as guest:
            master.read_until("guest-one has joined")
            assert master.terminate() == 0, master.output
            assert guest.wait() == 1
        assert 'RequestRefused: job "job" has ended' in guest.output


def test_what_a_job_does_not_have_is_refused(jobs: Jobs) -> None:
    with LoneMaster(jobs, "--no-task-manager", "--strategy=none") as master:
        token = master.token_file.read_text().strip()
        with MasterClient(master.address, token, "one") as client:
            with pytest.raises(RequestRefused, match="this job has no rendezvous server"):
                client.join_world()
            with pytest.raises(DatasetMismatch, match="this job has no task manager"):
                next(client.shards("train", size=10, shard_size=5))
        assert jobs.command("scale", "job", "--workers", "2").stderr == (
            'error: workers: 2 cannot be launched; the workers of job "job" start elsewhere\n'
        )


def test_a_shard_must_be_reported_before_the_next_is_asked_for(jobs: Jobs) -> None:
    with LoneMaster(jobs, "--strategy=none") as master:
        token = master.token_file.read_text().strip()
        with MasterClient(master.address, token, "one") as client:
            shards = client.shards("train", size=20, shard_size=5)
            first = next(shards)
            assert list(first) == [0, 1, 2, 3, 4]
            client.failed(first, "planted")
            with pytest.raises(InvalidInput, match="was reported before"):
                client.done(first)
            again = next(shards)
            with pytest.raises(InvalidInput, match="a shard was not reported"):
                next(shards)
            assert client.done(again)  # It is still in hand.
        assert len(master.committed()) == len(again)


def test_a_master_listens_where_it_is_told_and_takes_the_token_that_it_is_given(jobs: Jobs) -> None:
    token_file = jobs.folder / "token"
    with LoneMaster(jobs, f"--token-file={token_file}") as master:
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        port = master.address.rpartition(":")[2]
        taken = jobs.command("master", "--port", port)
        assert taken.returncode == 2
        assert taken.stderr == f"error: port: {port} cannot be listened on: Address already in use\n"
        assert master.terminate() == 0
    with LoneMaster(jobs, "--name=again", f"--port={port}", f"--token-file={token_file}") as again:
        assert again.address == f"127.0.0.1:{port}"
        MasterClient(again.address, token_file.read_text().strip(), "one").close()
        with pytest.raises(RequestRefused, match="wrong or missing token"):
            MasterClient(again.address, "some other token", "one")


def test_the_example_runs(jobs: Jobs) -> None:
    with LoneMaster(jobs) as master, master.guest(ROOT / "examples" / "guest.py") as guest:
        assert guest.wait() == 0, guest.output
        assert "rank 0 of 1" in guest.output
