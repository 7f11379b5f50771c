"""The numbers of one thread: quotients by ``smooth``, a scale per block of 16, codes. All to the bit of IEEE division.

| what | how | why it is exact |
|---|---|---|
| z = x / smooth | x * (r + r'), the remainder of it, one step | Markstein: the quotient is within 1 ulp, r is 1/smooth rounded |
| scale | E4M3 nearest to RN(amax / 6) | a midpoint of E4M3 has 5 bits, so RN reaches it from 6 times itself alone |
| code | E2M1 nearest to RN(z / scale) | likewise, scale times a midpoint of E2M1 has 7 bits |

The two quotients of the lower rows are x * (h + l) with h + l the reciprocal to more than 30 bits: one rounding of a value
that is off by less than 2^-30, while what is no midpoint is off by more than 2^-28 of the rounding's own boundary.
"""

from typing import Any

from cutlass import Float32, Uint32

from kernel_space.operators.nvfp4_quantize.rows import ptx

BLOCK = 16  # elements per scale
LEAST, MOST = 2.0**-40, 2.0**40  # smooth between these and quotients below LARGEST need no division
LARGEST = 2.0**100
SIXTH = 0x3E2AAAAB  # 1/6 rounded to fp32, and what is left of it
SIXTH_REST = 0xB1AAAAAB


def smooth_terms(smooth: list[Any], *, paired: bool) -> tuple[list[Any], list[Any], list[Any], Any]:
    """(-smooth, 1/smooth rounded, the rest of it, whether every one lies in [LEAST, MOST])."""
    negative = [-s for s in smooth]
    inverse = [ptx.reciprocal(s) for s in smooth]
    errors = ptx.multiply_add_each(negative, inverse, [Float32(1.0)] * len(smooth), paired=paired)
    rest = ptx.multiply_each(errors, inverse, paired=paired)
    usual = (smooth[0] >= LEAST) & (smooth[0] <= MOST)
    for s in smooth[1:]:
        usual = usual & (s >= LEAST) & (s <= MOST)
    return negative, inverse, rest, usual


def quotients(x: list[Any], terms: Any, *, paired: bool) -> list[Any]:
    """x / smooth, right wherever smooth is usual and the result below LARGEST; tiny ones stay tiny."""
    negative, inverse, rest, _ = terms
    near = ptx.multiply_each(x, rest, paired=paired)
    near = ptx.multiply_add_each(x, inverse, near, paired=paired)
    remainder = ptx.multiply_add_each(near, negative, x, paired=paired)
    exact = ptx.multiply_add_each(remainder, inverse, near, paired=paired)
    # The remainder of a negative zero, and so its quotient, would be a positive one.
    return [ptx.with_sign_of(z, sign) for z, sign in zip(exact, x, strict=True)]


def largest(values: list[Any]) -> Any:
    """The largest magnitude, NaN if there is one."""
    while len(values) > 1:
        values = [ptx.larger_magnitude(a, b) for a, b in zip(values[0::2], values[1::2], strict=True)]
    return values[0]


def sixth(amax: Any) -> Any:
    """amax / 6 rounded once; NaN for infinity and NaN."""
    return ptx.multiply_add(amax, _constant(SIXTH), ptx.multiply(amax, _constant(SIXTH_REST)))


def codes(z: list[Any], scale_byte: Any, *, has_fp4: bool) -> list[Any]:
    """Words of eight codes of one block, or half of one; zeros for scale 0, anything for the scale NaN."""
    scale = ptx.multiply(ptx.of_bits(scale_byte << Uint32(20)), Float32(2.0**120))
    rough = ptx.rough_reciprocal(scale)
    # Cut down to 12 bits it is not above 1 / scale: then the rest is not negative, and zeros keep their sign.
    inverse = ptx.of_bits(ptx.bits_of(rough) & Uint32(0xFFFFF000))
    rest = ptx.multiply(ptx.multiply_add(-inverse, scale, Float32(1.0)), rough)
    near = ptx.multiply_each(z, [rest] * len(z), paired=has_fp4)
    ratios = ptx.multiply_add_each(z, [inverse] * len(z), near, paired=has_fp4)
    word = ptx.e2m1_word if has_fp4 else ptx.e2m1_word_by_sums
    words = [word(ratios[i : i + 8]) for i in range(0, len(ratios), 8)]
    return [ptx.unless_zero(scale_byte, one) for one in words]


def _constant(bits: int) -> Any:
    return ptx.of_bits(Uint32(bits))
