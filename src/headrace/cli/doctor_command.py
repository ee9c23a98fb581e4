"""`headrace doctor RUN`: what holds a run up, the evidence, and changes ranked by what they should bring.

    metrics.jsonl, config.json, result.json ──planning──> verdict, advice ──> text · --json FILE
    --apply: the best advice that is an option, tried in short runs ──> predicted and achieved gain

A run may be going on, or come from elsewhere: its files are read as data, within limits. Without a RUN it is the
machine that is checked (cli/machine_check).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from headrace.cli.options import parse, read_config, translate
from headrace.cli.printing import passing
from headrace.cli.writing import expect_to_write, write_answer
from headrace.errors import HeadraceError, UsageError
from headrace.files import MAX_JSON_BYTES, parse_object, read_regular
from headrace.plain_text import message_of, printable
from headrace.planning.advice import Advice, advise
from headrace.planning.checks import positive
from headrace.planning.evidence import Evidence, evidence_of
from headrace.planning.quantities import counted, parse_bytes
from headrace.planning.recorded_diversity import diversity_findings
from headrace.planning.verdict import LEARNER, Verdict, judge
from headrace.run_lock import is_live
from headrace.telemetry.sinks import read_records

_WORTH_MEASURING = 0.15  # of an update's time: learning that takes less is not rehearsed
_SHOWN = 6
_SECONDS, _ROUNDS = 4.0, 2  # of the short runs of --apply


@dataclass(frozen=True)
class DoctorOptions:
    """Say what holds a run up, live or finished, and what would help, ranked by predicted gain in steps per second.
    Without a run: check this machine (shared memory, cores, limits, clock, leftovers); exit code 1 on a problem.
    """

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """A run directory."""
    apply: bool = False
    """Try the best advice that is an option in short runs, and print the predicted and the achieved gain."""
    seconds: float | None = None
    """With --apply: of each short run, 4 if not given."""
    rounds: int | None = None
    """With --apply: short runs without and with the change, 2 if not given."""
    json: Path | None = None
    """Write the answer here, too."""
    trust: bool = False
    """With --apply: import and call what the run names (module:attribute, kwargs, wrappers) without asking."""
    clean: bool = False
    """Without a run: remove shared-memory segments of dead runs, and no others."""
    need: str = ""
    """Without a run: shared memory that a run will ask for, as in 2GB; headrace plan prints the memory of rollouts."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    options, home = parse(DoctorOptions, translate(argv), "doctor"), Path.cwd()
    expect_to_write("--json", options.json)
    of_apply = {"--seconds": options.seconds is not None, "--rounds": options.rounds is not None}
    of_apply["--trust"] = options.trust
    if options.run is None:
        if options.apply or any(of_apply.values()):
            raise UsageError(f"{', '.join(['--apply', *of_apply])}: expected a run directory, too: headrace doctor RUN")
        from headrace.cli.machine_check import check_machine

        needed = positive("--need", parse_bytes("--need", options.need), may_be_zero=True) if options.need else 0.0
        return check_machine(options.clean, needed, options.json)
    if options.clean or options.need:
        raise UsageError("--clean and --need are about this machine: headrace doctor, without a run")
    if any(of_apply.values()) and not options.apply:
        given = ", ".join(name for name, is_given in of_apply.items() if is_given)
        raise UsageError(f"{given}: expected --apply, too, which makes short runs; without it leave that out")
    seconds = _SECONDS if options.seconds is None else options.seconds
    rounds = _ROUNDS if options.rounds is None else options.rounds
    if not 0 < seconds <= 600 or not 1 <= rounds <= 100:
        raise UsageError("--seconds, --rounds: expected more than 0 and at most 600, and 1 to 100")
    evidence = read_evidence(options.run)
    verdict = judge(evidence, _findings(options.run))
    costs: dict[tuple[str, int], float] = {}
    if verdict.shares.get(LEARNER, 0.0) >= _WORTH_MEASURING:
        from headrace.cli.doctor_measuring import learning_costs

        passing("measuring what larger minibatches would take ...")
        costs = learning_costs(options.run, evidence)
        passing("")
    advice = advise(evidence, costs)
    if advice:
        from headrace.cli.doctor_measuring import accepted

        advice = accepted(_object(options.run / "config.json"), evidence, advice)
    is_running = is_live(options.run)
    print(printable(_text(options.run, is_running, evidence, verdict, advice)))
    achieved = _applied(options, evidence, advice, seconds, rounds) if options.apply else None
    if options.json is not None:
        answer = {
            "run": str(options.run),
            "is_live": is_running,
            "steps_per_s": evidence.sps,
            "updates": evidence.updates,
            "verdict": asdict(verdict) | {"names": verdict.names},
            "advice": [asdict(one) | {"is_applicable": one.is_applicable} for one in advice],
            "applied": achieved,
        }
        write_answer("--json", options.json, (json.dumps(answer, indent=1) + "\n").encode(), home)
    return 0


def read_evidence(run_dir: Path) -> Evidence:
    """What the files of a run say; one clear line if they say nothing."""
    if not (run_dir / "metrics.jsonl").is_file() and (run_dir / "groups.jsonl").is_file():
        raise UsageError(
            f"{run_dir}: a run of LLM agents, and headrace doctor is about runs of headrace train; "
            f"headrace agents show {run_dir} lists its episodes, result.json has its numbers"
        )
    if not (run_dir / "metrics.jsonl").is_file():
        if is_live(run_dir):
            raise UsageError(f"{run_dir}: the run has begun and has no records yet; try again in a moment")
        raise UsageError(f"{run_dir}: expected a run directory with a metrics.jsonl")
    try:
        records = read_records(run_dir / "metrics.jsonl")
        config, result = (_object(run_dir / name) for name in ("config.json", "result.json"))
        return evidence_of(records, config, result)
    except (OSError, ValueError, ArithmeticError) as error:
        raise HeadraceError(f"{run_dir}: can't be read: {message_of(error)}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        return parse_object(read_regular(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        return {}


def _findings(run_dir: Path) -> list[str]:
    """Environments that begin or act alike, a policy whose entropy is gone: a sentence each, if there is something."""
    return [one.sentence for one in diversity_findings(run_dir) if one.level != "ok"]


def _text(run_dir: Path, is_running: bool, evidence: Evidence, verdict: Verdict, advice: list[Advice]) -> str:
    state = "still running" if is_running else "ended"
    updates = f"{evidence.updates} update{'s'[: evidence.updates != 1]}"
    lines = [f"{run_dir}: {state}, {counted(evidence.sps)} steps/s over {updates}", "", verdict.sentence]
    lines += [f"  {one.name:<28} {one.share:>4.0%}  {one.evidence}" for one in verdict.causes]
    lines += [f"  note: {note}" for note in verdict.notes]
    if advice:
        lines += ["", f"{'steps/s':>10}{'gain':>8}  what would help"]
        for one in advice[:_SHOWN]:
            what = f"{one.what}{': ' + ' '.join(one.options) if one.options else ''}"
            sps = "frames" if one.counts_frames else counted(one.sps)
            learns = "  (changes what is learnt)" if one.changes_learning else ""
            lines.append(f"{sps:>10}{one.gain:>7.2f}x  {what}{learns}")
    elif verdict.shares:
        lines += ["", "No change that headrace knows promises 5 % or more."]
    return "\n".join(lines)


def _applied(
    options: DoctorOptions, evidence: Evidence, advice: list[Advice], seconds: float, rounds: int
) -> dict[str, Any] | None:
    """The best advice that is an option, tried."""
    from headrace.cli.doctor_measuring import admitted, can_be_tried, same_disk, tried
    from headrace.cli.own_modules import find_own_modules

    assert options.run is not None
    best = next((one for one in advice if can_be_tried(one)), None)
    if best is None:
        print("\n--apply: there is no advice that is an option")
        return None
    if not (options.run / "config.json").is_file():
        raise UsageError(f"--apply: {options.run} has no config.json, without which it can't be run again")
    data, doubt = read_config(options.run / "config.json")
    config, session = admitted(options.run, data, doubt, options.trust)
    find_own_modules(config.env.encode())
    before, after = tried(config, session, evidence, best, seconds, rounds, passing, same_disk(options.run))
    gain = after / before if before else 0.0
    print(
        f"\ntried {' '.join(best.options)}: {counted(before)} -> {counted(after)} steps/s; "
        f"predicted {best.gain:.2f}x, achieved {gain:.2f}x"
    )
    return {"options": best.options, "predicted": best.gain, "achieved": gain, "before": before, "after": after}
