"""docs/chaos.md from benchmarks/results/chaos.json, and from nothing else: a test renders it again and compares.

Knows nothing of headrace, and runs nothing.
"""

from typing import Any

HEAD = """# Reliability report

This page shows what happens when things go wrong: processes are killed, environments hang, disks are full, files are
hostile. [`benchmarks/chaos.py`](../benchmarks/chaos.py) does the damage on purpose and measures what follows, by the
means of the operating system (`/proc`, exit codes, files, clocks). Small forms of the same faults run as
[tests](../tests/faults).

Run it yourself: `python benchmarks/chaos.py` (about ten minutes on two quiet cores), `--only 1,4` for some points,
`--long slow-learner slow-actors` for the long runs. It writes
[`benchmarks/results/chaos.json`](../benchmarks/results/chaos.json) and this page.

"Same bits" and "the calm run's weights" compare SHA-256 hashes with a run of the same configuration in which nothing
went wrong. "Machine busy" means that three processes burn CPU beside the run, on two cores. Times depend on what else
the machine does: the load average of the last minute stands beside each point.
"""


def rendered(document: dict[str, Any]) -> str:
    """The whole page."""
    entries = entries_of(document)
    host = document["host"]
    lines = [
        HEAD,
        f"Measured on: {host['cpu']}, {host['cores']} cores, Python {host['python']}, torch {host['torch']}.\n",
    ]
    lines += ["| point | what | figures that hold | not built yet |", "|---|---|---|---|"]
    for entry in entries:
        judged = [claim["holds"] for claim in entry["claims"] if claim["holds"] is not None]
        link = f"[{entry['number']}](#{anchor(entry)})"
        missing = "; ".join(entry["missing"]) or "–"
        lines.append(f"| {link} | {cell(entry['title'])} | {judged.count(True)} of {len(judged)} | {cell(missing)} |")
    for entry in entries:
        took = f"(Took {entry['seconds']} s; load average {entry['load']:.0f}.)"
        lines += ["", f"## {heading(entry)}", "", f"{entry['done']} {took}", ""]
        lines += ["| measured | value | goal | holds |", "|---|---|---|---|"]
        lines += [row(claim) for claim in entry["claims"]]
        lines += [f"| {cell(missing)} | not built yet | | |" for missing in entry["missing"]]
        lines += with_files(entry.get("extra", {}))
    return "\n".join(lines) + "\n"


def with_files(extra: dict[str, Any]) -> list[str]:
    """What the judged growth of memory leaves out."""
    grown = {side: one for side, one in extra.items() if isinstance(one, dict) and "pss_growth_mb" in one}
    if not grown:
        return []
    each = "; ".join(
        f"slow {side}: {number(one['pss_growth_mb'])} MB, without files {number(one['own_growth_mb'])} MB"
        for side, one in grown.items()
    )
    return [
        "",
        f"Growth of PSS, files included: {each}. The difference is pages of mapped files (torch's libraries), which "
        "PSS counts by share: it grows when the run touches more of them and when other processes of the machine that "
        "map them end; which of the two it was is not measured.",
    ]


def entries_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The points, with their claims and not only the names of these."""
    claims = {claim["name"]: claim for claim in document["claims"]}
    return [entry | {"claims": [claims[name] for name in entry["claims"]]} for entry in document["extra"]["points"]]


def heading(entry: dict[str, Any]) -> str:
    return f"{entry['number']}. {entry['title']}"


def anchor(entry: dict[str, Any]) -> str:
    """As GitHub makes it of a heading."""
    kept = [one for one in heading(entry).lower() if one.isalnum() or one in " -_"]
    return "".join(kept).replace(" ", "-")


def row(claim: dict[str, Any]) -> str:
    value, unit, wanted = number(claim["value"]), claim["unit"], claim["baseline"]
    goal = str(claim["goal"]).replace("<=", "at most").replace(">=", "at least").replace("none", "–")
    if goal == "all":
        value = f"{value} of {number(wanted)}"
    elif goal == "equal":
        goal = f"{number(wanted)} {unit}"
    elif claim["ratio"] is not None:
        unit = f"{unit}, calm {number(wanted)}: {claim['ratio']:.2f}x"
    holds = {True: "yes", False: "**no**", None: "–"}[claim["holds"]]
    return f"| {cell(claim['name'].partition('. ')[2])} | {value} {unit} | {cell(goal)} | {holds} |"


def number(value: float) -> str:
    """Whole numbers whole, others to three digits."""
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
