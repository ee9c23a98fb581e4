"""What a sweep over batch sizes shows: the fixed cost of a call, the cost of each environment, and the knee.

    (B, seconds of a call)... --fitted--> fixed + B x per_env --> steps/s = B / (fixed + B x per_env) --> the knee

The knee is the smallest measured B that reaches 90 % of the most that was measured. Where the fixed cost is amortised,
larger B brings nothing. Pure: numbers in, numbers and a sentence out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

KNEE = 0.9  # of the most that was measured
_FLAT = 1.15  # a curve that gains less than this from B = 1 to the knee has nothing to amortise
_FALLS = 0.8  # of the most: larger B that reach less are slower, and the knee alone does not say so


@dataclass(frozen=True)
class Point:
    """One batch size: steps per second of every repetition."""

    batch: int
    sps: tuple[float, ...]

    @property
    def typical(self) -> float:
        """The median."""
        return median(self.sps)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; a single repetition has none."""
        return stdev(self.sps) / len(self.sps) ** 0.5 if len(self.sps) > 1 else None


@dataclass(frozen=True)
class Curve:
    """One kind of work over all batch sizes, and what it says."""

    name: str
    """What was measured: environments, policy, both ..."""
    points: tuple[Point, ...]
    fixed_s: float
    """Seconds of a call, however many environments it is for."""
    per_env_s: float
    """Seconds of each environment in a call."""
    knee: int
    is_still_rising: bool
    """The largest B is the first to reach 90 %: a larger one may bring more."""

    @property
    def gain(self) -> float:
        """How much faster the knee is than the smallest B."""
        at_knee = next(point.typical for point in self.points if point.batch == self.knee)
        return at_knee / self.points[0].typical


def curve_of(name: str, points: Sequence[Point]) -> Curve:
    """Fit and knee of a curve of at least one point."""
    ordered = tuple(sorted(points, key=lambda point: point.batch))
    fixed_s, per_env_s = fitted([(point.batch, point.batch / point.typical) for point in ordered])
    most = max(point.typical for point in ordered)
    knee = next(point.batch for point in ordered if point.typical >= KNEE * most)
    return Curve(name, ordered, fixed_s, per_env_s, knee, len(ordered) > 1 and knee == ordered[-1].batch)


def fitted(calls: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Least squares of seconds = fixed + B x per_env, each call weighted by 1 / seconds: relative errors count alike.

    Neither cost is below 0.
    """
    weights = [1 / seconds**2 for _, seconds in calls]
    total = sum(weights)
    mean_b = sum(w * b for w, (b, _) in zip(weights, calls, strict=True)) / total
    mean_s = sum(w * s for w, (_, s) in zip(weights, calls, strict=True)) / total
    variance = sum(w * (b - mean_b) ** 2 for w, (b, _) in zip(weights, calls, strict=True))
    covariance = sum(w * (b - mean_b) * (s - mean_s) for w, (b, s) in zip(weights, calls, strict=True))
    per_env_s = max(0.0, covariance / variance) if variance else mean(s / b for b, s in calls)
    fixed_s = mean_s - per_env_s * mean_b
    if fixed_s >= 0:
        return fixed_s, per_env_s
    return 0.0, sum(w * b * s for w, (b, s) in zip(weights, calls, strict=True)) / sum(
        w * b * b for w, (b, _) in zip(weights, calls, strict=True)
    )


def explained(curve: Curve) -> str:
    """The knee in a sentence: which fixed cost is amortised there."""
    if len(curve.points) == 1:
        return f"one batch size (B = {curve.knee}) shows no knee: give several, as in --n-envs 1 8 64"
    fixed, each, first = _time(curve.fixed_s), _time(curve.per_env_s), curve.points[0].batch
    if curve.gain < _FLAT and not curve.is_still_rising:
        if falls := _falling(curve):
            return f"nothing is amortised: B = {curve.knee} is as good as any{falls}"
        return f"flat: every environment costs {each}, a call next to nothing ({fixed}); B does not matter"
    share = curve.fixed_s / (curve.fixed_s + curve.knee * curve.per_env_s) if curve.fixed_s else 0.0
    rest = f"there the {fixed} of a call are {share:.0%} of its time, {each} per environment the rest"
    if curve.is_still_rising:
        return f"still rising at B = {curve.knee} ({curve.gain:.1f}x of B = {first}): {rest}; try larger B"
    return f"knee at B = {curve.knee} ({curve.gain:.1f}x of B = {first}): {rest}{_falling(curve)}"


def moved(here: Curve, there: Curve) -> str:
    """Whether the knee of the same work lies elsewhere on a device, and why; empty if one batch size shows none."""
    if len(here.points) == 1 or len(there.points) == 1:
        return ""
    was, now = _where(here), _where(there)
    costs = f"a call costs {_time(there.fixed_s)} there whatever B is, {_time(here.fixed_s)} here"
    if here.is_still_rising and there.is_still_rising:
        return f"{there.name}: both still rise at B = {here.knee}, so whether the knee moves needs larger B; {costs}"
    if was == now:
        return f"{there.name}: the knee does not move, it is {now} as well; {costs}"
    return f"{there.name}: the knee moves, it is {now} and not {was}; {costs}"


def _where(curve: Curve) -> str:
    return f"{'beyond' * curve.is_still_rising or 'at'} B = {curve.knee}"


def _falling(curve: Curve) -> str:
    """What larger B cost, if they are slower than the best by more than noise."""
    most = max(point.typical for point in curve.points)
    beyond = [point for point in curve.points if point.batch > curve.knee]
    worst = min(beyond, key=lambda point: point.typical, default=None)
    if worst is None or worst.typical >= _FALLS * most:
        return ""
    return f"; B = {worst.batch} reaches only {worst.typical / most:.2f}x of the most"


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
