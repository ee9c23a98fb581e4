"""`headrace report RUN`: draw the report of a run from its files, at any time; the run may be going on."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.errors import HeadraceError, UsageError
from headrace.extras import left_out
from headrace.plain_text import message_of

_PARTS = ("metrics.jsonl", "config.json", "result.json")


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        "headrace report", description="Write report.html and report.png of a run into its directory."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    run_dir: Path = parser.parse_args(argv).run
    if not any((run_dir / name).is_file() for name in _PARTS):
        raise UsageError(f"{run_dir}: expected a run directory with one of {', '.join(_PARTS)}")
    from headrace.views.report import write_report

    try:
        write_report(run_dir)
    except OSError as error:
        raise HeadraceError(f"{run_dir}: the report can't be written: {message_of(error)}") from error
    print(f"report in {run_dir / 'report.html'}")
    if missing := left_out("plots"):
        print(missing)
    return 0
