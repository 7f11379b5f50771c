"""The numbers of one thread: quotients by ``smooth``, a scale per block of 16, codes.

| what | by definition | here |
|---|---|---|
| 1 / smooth | | r: the chip's guess and one step; r': what it lacks |
| z | x / smooth, rounded to fp32 | x * r + x * r' |
| scale | the E4M3 number nearest to amax / 6 | nearest to amax * s + amax * s', s and s' of 1/6 |
| code | the E2M1 number nearest to z / scale | nearest to z * t + z * t', t and t' of 1 / scale |

Each sum is one fma, rounded once, of a value that is off by less than 2^-46 (2^-33 for the codes). That may differ from
the rounded quotient in its last bit, but never decides another scale or code: they change at numbers of 7 bits (six
times a midpoint of E4M3, a scale times a midpoint of E2M1), and which side of these a quotient lies on comes out right.
For z the pairs (x, smooth) that come closest were counted out (tests/operators/nvfp4_quantize/test_rows_quotients.py):
only a smooth with a mantissa of ones goes wrong, and there a thread divides. For the others a quotient that is no such
number lies at least 6 % further from it than where rounding would end there.
"""

from typing import Any

from cutlass import Float32, Uint32

from kernel_space.operators.nvfp4_quantize.rows import ptx

BLOCK = 16  # elements per scale
LEAST, MOST = 2.0**-40, 2.0**40  # smooth between these and quotients below LARGEST need no division
LARGEST = 2.0**100
MANTISSA = 0x7FFFFF
SIXTH = 0x3E2AAAAB  # 1/6 rounded to fp32, and what is left of it
SIXTH_REST = 0xB1AAAAAB


def smooth_terms(smooth: list[Any], *, paired: bool) -> tuple[list[Any], list[Any], Any]:
    """(1/smooth rounded, the rest of it, whether ``quotients`` may use them), of some columns."""
    ones, negative = [Float32(1.0)] * len(smooth), [-s for s in smooth]
    guess = [ptx.rough_reciprocal(s) for s in smooth]
    errors = ptx.multiply_add_each(negative, guess, ones, paired=paired)
    # Off by less than one unit in the last place before, rounded after: Markstein, but for a mantissa of ones.
    inverse = ptx.multiply_add_each(errors, guess, guess, paired=paired)
    errors = ptx.multiply_add_each(negative, inverse, ones, paired=paired)
    rest = ptx.multiply_each(errors, inverse, paired=paired)
    usual = _is_usual(smooth[0])
    for s in smooth[1:]:
        usual = usual & _is_usual(s)
    return inverse, rest, usual


def _is_usual(smooth: Any) -> Any:
    mantissa = ptx.bits_of(smooth) & Uint32(MANTISSA)
    return (smooth >= LEAST) & (smooth <= MOST) & (mantissa != Uint32(MANTISSA))


def quotients(x: list[Any], terms: Any, *, paired: bool) -> list[Any]:
    """x / smooth, wherever smooth is usual and the result below LARGEST; tiny ones stay tiny."""
    inverse, rest, _ = terms
    near = ptx.multiply_each(x, rest, paired=paired)
    near = ptx.multiply_add_each(x, inverse, near, paired=paired)
    # The rest may be negative, and so the sum of a negative zero a positive one.
    return [ptx.with_sign_of(z, sign) for z, sign in zip(near, x, strict=True)]


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
