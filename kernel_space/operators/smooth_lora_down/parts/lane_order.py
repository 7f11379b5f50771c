"""What a lane makes of 16 elements of a row: numbers of 16 bits in quad order (``numerics.quad_order``).

Lane t of a quad has elements 16 t .. 16 t + 15 of a span of 64, words of two neighbours. It makes pairs (i, i + 4) of
each eight of them. Pairs i of the four lanes are one chunk of 16 bytes: so the quad transposes 4 x 4 words, and each
lane gets a whole chunk.
"""

from typing import Any

from cutlass import Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

ORDER = (0, 2, 1, 3)  # pair i of each chunk of a word, in the order of the chunks
LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632  # of two words
FIRST, SECOND = 0x3210, 0x7654  # of two words


def moved_pairs(words: list[Any]) -> list[Any]:
    """Eight words of neighbours -> eight words of pairs, those of a chunk of each word w after each other."""
    found = []
    for w in (0, 4):
        for i in ORDER:
            low, high = words[w + i // 2], words[w + i // 2 + 2]
            found.append(permute(low, high, HIGH_HALVES if i % 2 else LOW_HALVES))
    return found


def rounded_pairs(values: list[Any], *, is_bf16: bool) -> list[Any]:
    """16 fp32 numbers -> eight words of pairs, rounded to nearest even."""
    return [round_pair(values[w + i], values[w + i + 4], is_bf16=is_bf16) for w in (0, 8) for i in ORDER]


def transposed(words: list[Any], quarter: Any) -> list[Any]:
    """Four words of each lane of a quad; word j of lane t becomes word t of lane j. All lanes of the warp take part."""
    words = list(words)
    for distance in (1, 2):
        is_high = quarter // distance % 2
        keep = Uint32(is_high * (SECOND - FIRST) + FIRST)
        give = Uint32(is_high * (FIRST - SECOND) + SECOND)
        for j in range(4):
            if not j & distance:
                low, high = words[j], words[j | distance]
                got = cute.arch.shuffle_sync_bfly(permute(low, high, give), distance)
                words[j], words[j | distance] = permute(low, got, keep), permute(got, high, keep)
    return words


def permute(a: Any, b: Any, choice: Any) -> Any:
    """Four of the eight bytes of a (0..3) and b (4..7), by the nibbles of ``choice``."""
    return inline("prmt.b32 $0, $1, $2, $3;", "r", ("r", a), ("r", b), ("r", Uint32(choice)))[0]


def round_pair(low: Any, high: Any, *, is_bf16: bool) -> Any:
    """Two fp32 numbers as 16-bit ones in a word, to nearest even."""
    kind = "bf16x2" if is_bf16 else "f16x2"
    return inline(f"cvt.rn.{kind}.f32 $0, $2, $1;", "r", ("f", low), ("f", high))[0]
