"""The quotient of ``rows/arithmetic.py`` in exact arithmetic, at all pairs (x, smooth) where it could go wrong.

The kernel never rounds x / s as a division does. What counts is where a quotient stands to the numbers T at which a
scale or a code changes. It can only differ there if x / s lies within the error of the sum, some 2^-46, of a midpoint
between T and one of its neighbours in fp32. With the midpoint (2 N + 1) / 2 in units of the last place, that is

    s * (2 N + 1) = x * 2^b + off,    s and x whole numbers of 24 bits, ``off`` small,

so s is off / (2 N + 1) modulo 2^b: all of them can be listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from kernel_space.numerics.nvfp4 import E2M1_MAGNITUDES

MOST_OFF = 64  # s * (2 N + 1) < 2^49: an error of 2^-46 is less than 8
ONES = (1 << 24) - 1


def rounded(value: Fraction) -> Fraction:
    """To 24 bits, ties to even."""
    if not value:
        return value
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit


def mantissa(value: Fraction) -> Fraction:
    while value >= 2:
        value /= 2
    while value < 1:
        value *= 2
    return value


def edges() -> list[Fraction]:
    """The numbers in [1, 2) at which, times a power of two, a code or a scale changes."""
    middles = [Fraction(a + b) / 2 for a, b in zip(E2M1_MAGNITUDES, E2M1_MAGNITUDES[1:], strict=False)]
    codes = {mantissa(scale * middle) for scale in range(1, 16) for middle in middles}
    scales = {mantissa(Fraction(6 * (2 * n + 1), 2)) for n in range(16)}
    return sorted(codes | scales)


def hard_pairs(edge: Fraction) -> Iterator[tuple[int, int, Fraction]]:
    """(x, s, the edge in units of x / s): quotients beside the midpoints on both sides of ``edge``."""
    n = int(edge * (1 << 23))
    below = 2 * n - 1 if edge > 1 else 4 * n - 1  # numbers below a power of two lie half as far apart
    for odd, side in ((2 * n + 1, -1), (below, 1)):
        for bits in (23, 24, 25, 26):
            inverse = pow(odd, -1, 1 << bits)
            for off in (*range(-MOST_OFF, 0), *range(1, MOST_OFF + 1)):
                for s in range(off * inverse % (1 << bits), 1 << 24, 1 << bits):
                    x = (s * odd - off) >> bits
                    if s >> 23 and rounded(Fraction(x)) == x:
                        yield x, s, Fraction(odd + side, 1 << bits)


def side_of(value: Fraction, edge: Fraction) -> int:
    return (value > edge) - (value < edge)


def as_the_kernel(x: int, s: int, inverse: Fraction) -> Fraction:
    """x * r + x * r' with r = ``inverse`` and one rounding of each operation."""
    rest = rounded((1 - s * inverse) * inverse)
    return rounded(x * inverse + rounded(x * rest))


def wrong(pairs: Iterator[tuple[int, int, Fraction]]) -> list[tuple[int, int]]:
    return [
        (x, s)
        for x, s, edge in pairs
        if side_of(as_the_kernel(x, s, rounded(Fraction(1, s))), edge)
        != side_of(rounded(Fraction(x, s)), edge)
    ]


def test_the_pairs_lie_as_close_as_they_say() -> None:
    found = [one for edge in edges() for one in hard_pairs(edge)]
    assert len(found) > 5000 and len(edges()) == 29
    for x, s, edge in found[::50]:
        distance = abs(Fraction(x, s) / edge - 1) * (1 << 24)
        # Half a unit in the last place is 2^-24 of a power of two and half that of the number before the next.
        assert Fraction(99, 200) < distance < Fraction(101, 100)


def test_only_a_smooth_with_a_mantissa_of_ones_decides_otherwise_than_a_division() -> None:
    failed = [pair for edge in edges() for pair in wrong(hard_pairs(edge))]
    assert failed and {s for _, s in failed} == {ONES}


def test_a_product_with_the_rounded_reciprocal_alone_would_go_wrong() -> None:
    """So the pairs are hard enough to tell."""
    failed = 0
    for x, s, edge in hard_pairs(Fraction(5, 4)):
        product = rounded(x * rounded(Fraction(1, s)))
        failed += side_of(product, edge) != side_of(rounded(Fraction(x, s)), edge)
    assert failed > 20


def test_the_step_rounds_the_reciprocal_of_every_smooth_but_one() -> None:
    """From either fp32 number beside 1 / s: mantissas next to a power of two, and a sample of all."""
    sample = {*range(1 << 23, (1 << 23) + 500), *range(ONES - 500, ONES + 1), *range(1 << 23, 1 << 24, 9973)}
    failed = set()
    for s in sample:
        exact = Fraction(1, s)
        low = Fraction((1 << 47) // s, 1 << 47)
        for guess in (low, low if (1 << 47) % s == 0 else low + Fraction(1, 1 << 47)):
            if rounded(guess + rounded(1 - s * guess) * guess) != rounded(exact):
                failed.add(s)
    assert failed == {ONES}
