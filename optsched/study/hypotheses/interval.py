"""Numbers that are known between two bounds, exactly, and logic of three values.

A side of a claim that is an optimum is known as [bound, value]. Sums, products and quotients of intervals are the
smallest intervals that hold all possible results (Moore, 1966). A comparison is true or false if it is so for all
numbers of the intervals, else open (None); *and*, *or*, *not* are Kleene's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

Truth = bool | None
"""True, false, or None for open."""


@dataclass(frozen=True)
class Interval:
    """All numbers from ``low`` to ``high``; None is no bound on that side."""

    low: Fraction | None
    high: Fraction | None

    @classmethod
    def of(cls, number: int | float | Fraction) -> Interval:
        """Return the interval of one number; a decimal fraction such as 0.17 is meant as it is written."""
        exact = Fraction(repr(number)) if isinstance(number, float) else Fraction(number)
        return cls(exact, exact)

    def __add__(self, other: Interval) -> Interval:
        return Interval(_sum(self.low, other.low), _sum(self.high, other.high))

    def __neg__(self) -> Interval:
        return Interval(_negative(self.high), _negative(self.low))

    def __sub__(self, other: Interval) -> Interval:
        return self + -other

    def __mul__(self, other: Interval) -> Interval:
        ends = (self.low, self.high, other.low, other.high)
        if None not in ends:
            products = [mine * theirs for mine in _ends(self) for theirs in _ends(other)]
            return Interval(min(products), max(products))
        if self.is_positive and other.is_positive:
            assert self.low is not None, "it is positive"
            assert other.low is not None, "it is positive"
            return Interval(self.low * other.low, None)
        return Interval(None, None)

    def __truediv__(self, other: Interval) -> Interval:
        if other.low is None or other.low <= 0:
            if other.high is None or other.high >= 0:
                return Interval(None, None)
            return -self / -other
        return self * Interval(Fraction(0) if other.high is None else 1 / other.high, 1 / other.low)

    @property
    def is_positive(self) -> bool:
        """Whether no number of it is negative."""
        return self.low is not None and self.low >= 0

    def __lt__(self, other: Interval) -> Truth:
        if self.high is not None and other.low is not None and self.high < other.low:
            return True
        return False if self.low is not None and other.high is not None and self.low >= other.high else None

    def __le__(self, other: Interval) -> Truth:
        return negation(other < self)

    def equals(self, other: Interval) -> Truth:
        """Whether both are the same number."""
        if (self < other) is True or (other < self) is True:
            return False
        point = self.low is not None and self.low == self.high == other.low == other.high
        return True if point else None


def _ends(interval: Interval) -> tuple[Fraction, Fraction]:
    assert interval.low is not None, "asked before"
    assert interval.high is not None, "asked before"
    return interval.low, interval.high


def _sum(first: Fraction | None, second: Fraction | None) -> Fraction | None:
    return None if first is None or second is None else first + second


def _negative(number: Fraction | None) -> Fraction | None:
    return None if number is None else -number


def least(intervals: Iterable[Interval]) -> Interval:
    """Return the interval of the minimum."""
    found = list(intervals)
    highs = [each.high for each in found if each.high is not None]
    lows = [each.low for each in found if each.low is not None]
    return Interval(min(lows) if len(lows) == len(found) else None, min(highs, default=None))


def greatest(intervals: Iterable[Interval]) -> Interval:
    """Return the interval of the maximum."""
    return -least(-each for each in intervals)


def negation(truth: Truth) -> Truth:
    """Return Kleene's *not*."""
    return None if truth is None else not truth


def conjunction(truths: Iterable[Truth]) -> Truth:
    """Return Kleene's *and*."""
    found = set(truths)
    return False if False in found else None if None in found else True


def disjunction(truths: Iterable[Truth]) -> Truth:
    """Return Kleene's *or*."""
    return negation(conjunction(negation(truth) for truth in truths))
