"""The curves of a task from a report of learning.py: mean over seeds, and its standard error as a band.

python benchmarks/learning_plot.py benchmarks/results/learning_normalized.json docs/halfcheetah.png
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

LABELS = {"headrace": "headrace", "sb3": "Stable-Baselines3", "without": "headrace, without normalisation"}
COLOURS = {"headrace": "#1f6fb4", "sb3": "#d9822b", "without": "#8a8f98"}


def draw(report: Path, to: Path) -> None:
    """One panel for each task."""
    tasks = json.loads(report.read_text())["extra"]["curves"]
    figure, panels = plt.subplots(1, len(tasks), figsize=(7.0 * len(tasks), 4.0), squeeze=False, layout="constrained")
    for panel, (name, curves) in zip(panels[0], tasks.items(), strict=True):
        for who, runs in curves.items():
            steps = np.array(runs[0])[:, 0]
            values = np.array([[value for _, value in run] for run in runs])
            mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
            panel.plot(steps, mean, color=COLOURS[who], label=LABELS[who], linewidth=2)
            panel.fill_between(steps, mean - error, mean + error, color=COLOURS[who], alpha=0.15, linewidth=0)
        panel.set(title=f"{name}: mean of {len(runs)} seeds", xlabel="environment steps", ylabel="return (evaluation)")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    figure.savefig(to, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("to", type=Path)
    arguments = parser.parse_args()
    draw(arguments.report, arguments.to)
