"""What the figures of some rounds say: medians, bootstrap intervals, ratios, verdicts, geometric means.

Percentile intervals, not BCa: with a handful of rounds the acceleration that BCa takes from the jackknife of a median
is often 0/0. With fewer than six rounds an interval is about the range of the rounds; it does not promise more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")

CONFIDENCE = 0.95
RESAMPLES = 4999
SEED = 20150614  # the same rounds give the same report

AHEAD, BEHIND, LEVEL, UNKNOWN = "ahead", "behind", "no difference seen", "one round: no interval"


@dataclass(frozen=True)
class Interval:
    """A median or a ratio of medians. Without an interval (one round), low and high are the value itself."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def known(self) -> bool:
        return self.rounds > 1


def turn(items: Sequence[T], number: int) -> list[T]:
    """The items in the order of a round: each begins with another one, as who runs later finds a warmer machine."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def draws(rounds: int) -> np.ndarray:
    """Which rounds make up each resample, as rows."""
    return np.random.default_rng(SEED).integers(0, rounds, (RESAMPLES, rounds))


def bounds(resampled: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def median_interval(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    middle = float(np.median(values))
    if len(values) == 1 or min(values) == max(values):
        return Interval(middle, middle, middle, len(values))
    low, high = bounds(np.median(np.asarray(values, dtype=float)[draws(len(values))], axis=1))
    return Interval(middle, low, high, len(values))


def ratio_interval(above: dict[int, float], below: dict[int, float]) -> Interval | None:
    """The median of `above` divided by that of `below`, both by round.

    Rounds are drawn in pairs: the two ran within minutes of each other, so what the machine did then cancels out.
    """
    common = sorted(above.keys() & below.keys())
    a, b = (np.array([values[r] for r in common], dtype=float) for values in (above, below))
    if not common or a.min() <= 0 or b.min() <= 0:
        return None
    ratio = float(np.median(a) / np.median(b))
    if len(common) == 1:
        return Interval(ratio, ratio, ratio, 1)
    drawn = draws(len(common))
    low, high = bounds(np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1))
    return Interval(ratio, low, high, len(common))


def verdict(advantage: Interval | None) -> str:
    """Of a ratio that is above 1 where Folio leads."""
    if advantage is None:
        return ""
    if not advantage.known:
        return UNKNOWN
    if advantage.low > 1:
        return AHEAD
    return BEHIND if advantage.high < 1 else LEVEL


def geometric_mean(values: Sequence[float]) -> float | None:
    return float(np.exp(np.mean(np.log(values)))) if len(values) else None


def mean_ratio_interval(pairs: Sequence[tuple[dict[int, float], dict[int, float]]]) -> Interval | None:
    """The geometric mean, over programs, of the ratio of medians: of each pair the first by the second, by round.

    A round is drawn with all its programs; only rounds that all of them have make the interval.
    """
    medians = [np.median(list(a.values())) / np.median(list(b.values())) for a, b in pairs]
    if not medians:
        return None
    value = float(np.exp(np.mean(np.log(medians))))
    common = sorted(set.intersection(*(a.keys() & b.keys() for a, b in pairs)))
    if len(common) < 2:
        return Interval(value, value, value, len(common))
    above, below = (np.array([[pair[i][r] for r in common] for pair in pairs]) for i in (0, 1))
    drawn = draws(len(common))
    ratios = np.median(above[:, drawn], axis=2) / np.median(below[:, drawn], axis=2)
    low, high = bounds(np.exp(np.mean(np.log(ratios), axis=0)))
    return Interval(value, low, high, len(common))
