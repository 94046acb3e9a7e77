"""How well a job is sized, in a replay of jobs whose true speed is known, and on measured points.

Without options, both: the replay of the judged jobs under each policy, and the points that are kept here.

- replay: mean completion time of the jobs under each policy, beside that of the threshold rules and of two oracles. The
  free oracle is at the best size of every moment from the first second and pays nothing; the paying one begins where
  all policies begin, and pays for its changes as they do. The user's request is the only one that begins elsewhere.
- points: fit to some of the measured points, predict the others; MAPE, leave one out and with random halves held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from benchmarks.report import Report, parser
from benchmarks.sizing_replay.jobs import SETS, make_job
from benchmarks.sizing_replay.points import FILE, measure_points
from benchmarks.sizing_replay.policies import (
    Elastane,
    Greedy,
    PayingOracle,
    Policy,
    Request,
    Thresholds,
    free_completion_s,
)
from benchmarks.sizing_replay.replay import Outcome, replay
from elastane.model.sizing import JobKind

POLICIES: tuple[Policy, ...] = (Request(), Thresholds(), Greedy(), Elastane(), PayingOracle())
FREE = "free oracle"


def measure_replay(report: Report, set_name: str, count: int) -> None:
    jobs = [make_job(set_name, number) for number in range(count)]
    free_s = {job.number: free_completion_s(job) for job in jobs}
    outcomes = {job.number: replay(job, POLICIES) for job in jobs}
    by_servers = [job for job in jobs if job.kind is JobKind.PARAMETER_SERVER]
    kinds = {
        "all": jobs,
        "with PS": by_servers,
        "with PS whose cores are fixed": [job for job in by_servers if not job.budget.worker_cpus],
        "with all-reduce": [job for job in jobs if job.kind is JobKind.ALLREDUCE],
    }
    for kind, members in kinds.items():
        completed = {
            policy.name: [outcomes[job.number][policy.name].completed_s for job in members] for policy in POLICIES
        }
        completed[FREE] = [free_s[job.number] for job in members]
        for name, seconds in completed.items():
            row = report.row(f"replay, {set_name}", jobs=f"{len(members)} {kind}", policy=name)
            if kind == "all":
                row.add(mean_completion_h=mean(seconds) / 3600)
            row.add(
                beside_thresholds=mean(seconds) / mean(completed["thresholds"]),
                beside_free_oracle=mean(seconds) / mean(completed[FREE]),
            )
            if kind == "all":
                ratios = [mine / best for mine, best in zip(seconds, completed[FREE], strict=True)]
                row.add(mean_of_ratios_to_free_oracle=mean(ratios))
            if kind == "all" and name != FREE:
                row.add(**_conduct([outcomes[job.number][name] for job in members]))


def _conduct(outcomes: Sequence[Outcome]) -> dict[str, float]:
    reached = [outcome.plans_to_ninety for outcome in outcomes if outcome.plans_to_ninety is not None]
    return {
        "plans": mean(outcome.plans for outcome in outcomes),
        "rolled_back": mean(outcome.rollbacks for outcome in outcomes),
        "reached_ninety_percent": len(reached) / len(outcomes),
        "plans_to_ninety_percent": mean(reached) if reached else float("nan"),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--jobs", choices=SETS, default="judge", help="the jobs that no constant was chosen on")
    arguments.add_argument("--count", type=int, default=100, help="how many jobs")
    arguments.add_argument("--points", type=Path, metavar="FILE", help="only fit to the measured points of this file")
    arguments.add_argument("--real", action="store_true", help="real jobs here instead, sized by themselves")
    options = arguments.parse_args()
    report = Report()
    if options.real:
        from benchmarks.sizing_real import measure_real

        measure_real(report, quick=options.quick)
        report.show(options.json)
        return
    if options.points is None:
        measure_replay(report, options.jobs, 20 if options.quick else options.count)
    measure_points(report, options.points or FILE, 3 if options.quick else 20)
    report.show(options.json)


if __name__ == "__main__":
    main()
