"""Eight neighbours along K of x over smooth, in one lane."""

from typing import Any

import cutlass
from cutlass import Float32, cute

from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

VECTOR = 8  # neighbours along K of a lane
ONE = 0x3F800000  # 1.0, a smooth where there is none


class Eights:
    """Mixin: fp32 numbers as ``nvfp4_quantize`` and ``smooth_lora_down`` have them, each operation rounded once."""

    @staticmethod
    def scaled(lay: Any, words: Any, inverse: Any) -> list[Any]:
        """x / smooth of four words of x."""
        kind = "bf16" if lay.is_bf16 else "f16"
        values = [value for word in words for value in ptx.two_halves(word, kind)]
        return ptx.multiply_each(values, [inverse[i] for i in range(VECTOR)], paired=False)

    @cute.jit
    def inverse(self, words: Any):
        """1 / smooth of eight words, by one step where that is sure to be right."""
        smooth = [ptx.of_bits(word) for word in words]
        rounded, usual = arithmetic.reciprocals(smooth, paired=False)
        inverse = cute.make_rmem_tensor(VECTOR, Float32)
        for i in cutlass.range_constexpr(VECTOR):
            inverse[i] = rounded[i]
        if not usual:
            for i in cutlass.range_constexpr(VECTOR):
                inverse[i] = ptx.divide(Float32(1.0), smooth[i])
        return inverse
