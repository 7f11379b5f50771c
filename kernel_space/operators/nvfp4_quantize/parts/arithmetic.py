"""The numbers of one thread: 1 / smooth, a scale per block of 16, codes. ``reference`` states the contract.

| what | by definition, rounded to fp32 | here |
|---|---|---|
| 1 / smooth | IEEE division | the chip's guess and one step; divided where that may differ |
| z | x * (1 / smooth) | the same |
| scale | the E4M3 number nearest to amax * (1 / 6) | the same |
| 1 / scale | IEEE division | the chip's guess and one step |
| code | the E2M1 number nearest to z * (1 / scale) | sm_100: the same; sm_90: three sums with 2^23 |

The step is Markstein's: of a guess that is off by less than one unit in the last place it makes the rounded reciprocal,
but of numbers whose mantissa is all ones. No E4M3 number has that mantissa.
"""

from typing import Any

from cutlass import Float32, Uint32

from kernel_space.operators.nvfp4_quantize.parts import ptx

BLOCK = 16  # elements per scale
LEAST, MOST = 2.0**-100, 2.0**100  # a smooth between these has a reciprocal by one step
MANTISSA = 0x7FFFFF
SIXTH = 0x3E2AAAAB  # 1/6 rounded to fp32
SIGNS = 0x88888888


def reciprocals(smooth: list[Any], *, paired: bool) -> tuple[list[Any], Any]:
    """(1 / smooth of some columns, whether all of them are right: else ``ptx.divide`` must do it)."""
    ones, negative = [Float32(1.0)] * len(smooth), [-s for s in smooth]
    guess = [ptx.rough_reciprocal(s) for s in smooth]
    errors = ptx.multiply_add_each(negative, guess, ones, paired=paired)
    inverse = ptx.multiply_add_each(errors, guess, guess, paired=paired)
    usual = _is_usual(smooth[0])
    for s in smooth[1:]:
        usual = usual & _is_usual(s)
    return inverse, usual


def _is_usual(smooth: Any) -> Any:
    mantissa = ptx.bits_of(smooth) & Uint32(MANTISSA)
    return (smooth >= LEAST) & (smooth <= MOST) & (mantissa != Uint32(MANTISSA))


def largest(values: list[Any]) -> Any:
    """The largest magnitude, NaN if there is one."""
    while len(values) > 1:
        values = [ptx.larger_magnitude(a, b) for a, b in zip(values[0::2], values[1::2], strict=True)]
    return values[0]


def sixth(amax: Any) -> Any:
    """amax / 6 as it is rounded to a scale; NaN for infinity and NaN."""
    nothing = ptx.multiply(amax, Float32(0.0))
    return ptx.multiply_add(amax, ptx.of_bits(Uint32(SIXTH)), nothing)


def codes(z: list[Any], scale_byte: Any, *, has_fp4: bool) -> list[Any]:
    """Words of eight codes of one block, or half of one; zeros for scale 0, anything for the scale NaN."""
    if has_fp4:
        inverse = _inverse(scale_byte, 2.0**120)
        ratios = ptx.multiply_each(z, [inverse] * len(z), paired=True)
        words = [ptx.e2m1_word(ratios[i : i + 8]) for i in range(0, len(ratios), 8)]
        return [ptx.unless_zero(scale_byte, word) for word in words]
    # An eighth of the ratio saturates at 1, and NaN at 0: so where the scale is 0 the code is.
    eighth = _inverse(scale_byte, 2.0**123)
    signs = ptx.unless_zero(scale_byte, Uint32(SIGNS))
    return [ptx.e2m1_word_by_sums(z[i : i + 8], eighth, signs) for i in range(0, len(z), 8)]


def _inverse(scale_byte: Any, unit: float) -> Any:
    """1 / (scale * 2^-120 * ``unit``) rounded; NaN for 0."""
    scale = ptx.multiply(ptx.of_bits(scale_byte << Uint32(20)), Float32(unit))
    rough = ptx.rough_reciprocal(scale)
    error = ptx.multiply_add(-scale, rough, Float32(1.0))
    return ptx.multiply_add(error, rough, rough)
