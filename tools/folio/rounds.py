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


RELIABLE_ROUNDS = 6  # with fewer an interval is about the range of the rounds


@dataclass(frozen=True)
class Interval:
    """A median, of values or of ratios. Without an interval (one round), low and high are the value itself."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def known(self) -> bool:
        return self.rounds > 1

    @property
    def percent(self) -> float:
        """Half its width, of its value."""
        return (self.high - self.low) / 2 / self.value * 100

    def settled(self, percent: float) -> bool:
        return self.rounds >= RELIABLE_ROUNDS and self.percent <= percent


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
    """The median of the ratios of `above` to `below`, both by round.

    Of each round by itself: the two ran within minutes of each other, so what the machine did then cancels out, which
    it does not in a ratio of medians where the two come from different rounds.
    """
    common = sorted(above.keys() & below.keys())
    if not common or min(above[r] for r in common) <= 0 or min(below[r] for r in common) <= 0:
        return None
    return median_interval([above[r] / below[r] for r in common])


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
    """The geometric mean, over programs, of the ratio of each pair, the first by the second, by round.

    A round is drawn with all its programs; only rounds that all of them have make the interval.
    """
    found = [ratio_interval(a, b) for a, b in pairs]
    if not found or None in found:
        return None
    value = float(np.exp(np.mean(np.log([ratio.value for ratio in found if ratio is not None]))))
    common = sorted(set.intersection(*(a.keys() & b.keys() for a, b in pairs)))
    if len(common) < 2:
        return Interval(value, value, value, len(common))
    above, below = (np.array([[pair[i][r] for r in common] for pair in pairs]) for i in (0, 1))
    drawn = draws(len(common))
    ratios = np.median((above / below)[:, drawn], axis=2)
    low, high = bounds(np.exp(np.mean(np.log(ratios), axis=0)))
    return Interval(value, low, high, len(common))
