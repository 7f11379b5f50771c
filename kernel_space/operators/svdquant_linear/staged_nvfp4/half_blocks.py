"""Half a block of x in a lane, the other half in its neighbour: their NVFP4 codes, and the scale that they share."""

from typing import Any

from cutlass import Float32, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import block_factor
from kernel_space.operators.svdquant_linear_16bit.whole.eights import Eights

FIRST_BYTE = 0x4040  # selector of ``block_factor``
NAN_SCALE, NAN_PAIR = 0x7F, 0x7FFF7FFF


class HalfBlocks(Eights):
    """Mixin with the numbers of ``nvfp4_quantize``, to the bit, of one lane."""

    @cute.jit
    def codes_and_factor(self, lay: Any, words: Any, inverse: Any) -> Any:
        """Of four words of x and 1 / smooth of their eight numbers, both lanes of a block at once: a word of eight
        codes, and the scale as a factor of what ``weights_of_word`` or ``unpack_word`` makes of them.
        """
        z = self.scaled(lay, words, inverse)
        amax = arithmetic.largest(z)
        amax = ptx.larger_magnitude(amax, cute.arch.shuffle_sync_bfly(amax, 1))
        scale = ptx.e4m3_bytes(arithmetic.sixth(amax), Float32(0.0))
        codes = arithmetic.codes(z, scale, has_fp4=False)[0]
        factor = block_factor(scale, Uint32(FIRST_BYTE), is_bf16=lay.is_bf16)
        if scale == NAN_SCALE:
            factor = Uint32(NAN_PAIR)
        return codes, factor
