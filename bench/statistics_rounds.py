"""What the figures of some rounds say: medians, bootstrap intervals, ratios, verdicts, geometric means.

Percentile intervals, not BCa: with a handful of rounds the acceleration that BCa takes from the jackknife of a median
is often 0/0. With fewer than six rounds an interval is about the range of the rounds; it does not promise more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, gmean

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


def median_interval(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    middle = float(np.median(values))
    if len(values) == 1 or min(values) == max(values):
        return Interval(middle, middle, middle, len(values))
    found = bootstrap(
        (np.asarray(values),),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Interval(middle, float(found.low), float(found.high), len(values))


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
    found = bootstrap(
        (a, b),
        lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis),
        paired=True,
        vectorized=True,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Interval(ratio, float(found.low), float(found.high), len(common))


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
    return float(gmean(values)) if len(values) else None


def mean_ratio_interval(pairs: Sequence[tuple[dict[int, float], dict[int, float]]]) -> Interval | None:
    """The geometric mean, over programs, of the ratio of medians: of each pair the first by the second, by round.

    A round is drawn with all its programs; only rounds that all of them have make the interval.
    """
    medians = [np.median(list(a.values())) / np.median(list(b.values())) for a, b in pairs]
    if not medians:
        return None
    value = float(gmean(medians))
    common = sorted(set.intersection(*(a.keys() & b.keys() for a, b in pairs)))
    if len(common) < 2:
        return Interval(value, value, value, len(common))
    above, below = (np.array([[pair[i][r] for r in common] for pair in pairs]) for i in (0, 1))
    drawn = np.random.default_rng(SEED).integers(len(common), size=(RESAMPLES, len(common)))
    ratios = np.median(above[:, drawn], axis=2) / np.median(below[:, drawn], axis=2)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(gmean(ratios, axis=0), [tail, 100 - tail])
    return Interval(value, float(low), float(high), len(common))
