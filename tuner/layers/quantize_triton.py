"""``quantize_act`` on a card: one Triton kernel, equal to ``nvfp4_quantize``'s reference to the bit.

Every step is one fp32 operation, rounded as IEEE says: reciprocals of smooth and of a scale by ``div_rn``, products
with them. A scale is the E4M3 number nearest to amax * (1 / 6), which is compared with the midpoint between two
neighbours; a code is that of the E2M1 number nearest to z * (1 / scale). The midpoints are exact in fp32.

A block with NaN or infinity gets the scale NaN (and codes 0), which every product with it hands on to y.
"""

# No ``from __future__ import annotations``: Triton reads the annotations of its kernels.
import torch
import triton
import triton.language as tl

BLOCK_ROWS = 16
BLOCK_K = 256  # a multiple of 64, the K of one block of scale factors
SF_ROWS = 128


@triton.jit
def _scale_steps(amax):
    """(n, step): the E4M3 number nearest to amax * (1 / 6) is n * step; ties to even, not yet limited to 448."""
    quotient = amax * 0.16666667163372039794921875  # 1 / 6 rounded to fp32
    bits = quotient.to(tl.int32, bitcast=True)
    # The power of two below, 2^-6 at least: from there down the numbers are 2^-9 apart.
    power = tl.maximum(bits & 0x7F800000, 121 << 23).to(tl.float32, bitcast=True)
    step = power * 0.125
    per_step = ((254 << 23) - step.to(tl.int32, bitcast=True)).to(
        tl.float32, bitcast=True
    )  # 1 / step, exactly
    n = tl.floor(quotient * per_step)
    middle = (n + 0.5) * step
    odd = (n.to(tl.int32) & 1) == 1
    n += ((quotient > middle) | ((quotient == middle) & odd)).to(tl.float32)
    return n, step


@triton.jit
def _e4m3_bits(scale):
    """The byte of an E4M3 number >= 0 given in fp32."""
    bits = scale.to(tl.int32, bitcast=True)
    normal = (bits >> 20) - (120 << 3)
    subnormal = (scale * 512.0).to(tl.int32)
    return tl.where(scale < 0.015625, subnormal, normal).to(tl.uint8)


@triton.jit
def _e2m1_code(z, scale, inverse):
    """Code 0..15 of the E2M1 number nearest to z * inverse; ties to the even code, beyond 6 to 6; 0 for scale 0."""
    size = tl.abs(z * inverse)
    code = (size > 0.25).to(tl.int32)
    code += (size >= 0.75).to(tl.int32)
    code += (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32)
    code += (size > 2.5).to(tl.int32)
    code += (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    sign = (z.to(tl.int32, bitcast=True) >> 28) & 8
    return tl.where(scale == 0.0, 0, code | sign)


@triton.jit
def _quantize_kernel(
    x,
    smooth,
    act,
    ascales,
    rows,
    k,
    k_blocks,
    HAS_SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    K: tl.constexpr,
):
    """One tile of ROWS x K. Rows up to a multiple of 128 and groups up to a multiple of 4 get zero scales."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * K + tl.arange(0, K)
    inside = (row < rows)[:, None] & (column < k)[None, :]
    z = tl.load(x + row[:, None] * k + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_SMOOTH:
        by = tl.load(smooth + column, mask=column < k, other=1.0)
        z = z * tl.div_rn(tl.full((K,), 1.0, tl.float32), by)[None, :]
    z = tl.reshape(z, (ROWS, K // 16, 16))
    # As integers, magnitudes are in the same order, and above all finite ones are infinity and then NaN: a maximum of
    # floats would drop NaN.
    largest = tl.max(z.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2)
    finite = largest < 0x7F800000
    n, step = _scale_steps(tl.where(finite, largest, 0).to(tl.float32, bitcast=True))
    scale = tl.minimum(n * step, 448.0)

    inverse = tl.div_rn(tl.full((ROWS, K // 16), 1.0, tl.float32), scale)
    code = _e2m1_code(z, tl.expand_dims(scale, 2), tl.expand_dims(inverse, 2))
    low, high = tl.split(tl.reshape(code, (ROWS, K // 2, 2)))
    byte = tl.program_id(1) * (K // 2) + tl.arange(0, K // 2)
    target = act + row[:, None] * (k // 2) + byte[None, :]
    tl.store(target, (low | (high << 4)).to(tl.uint8), mask=(row < rows)[:, None] & (byte < k // 2)[None, :])

    group = tl.program_id(1) * (K // 16) + tl.arange(0, K // 16)
    block = (row // 128)[:, None] * k_blocks + (group // 4)[None, :]
    within = ((row % 32) * 16 + row % 128 // 32 * 4)[:, None] + (group % 4)[None, :]
    scale_byte = tl.where(finite, _e4m3_bits(scale), 0x7F).to(tl.uint8)
    tl.store(ascales + block * 512 + within, scale_byte, mask=(group < k_blocks * 4)[None, :])


def quantize_on_card(x: torch.Tensor, smooth: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(act, ascales) of contiguous ``x`` ``[M, K]``, M >= 1, and fp32 ``smooth`` ``[K]``, on the current stream."""
    m, k = x.shape
    row_blocks, k_blocks = -(-m // SF_ROWS), -(-k // 64)
    act = torch.empty((m, k // 2), dtype=torch.uint8, device=x.device)
    ascales = torch.empty(row_blocks * k_blocks * 512, dtype=torch.uint8, device=x.device)
    grid = (row_blocks * (SF_ROWS // BLOCK_ROWS), triton.cdiv(k, BLOCK_K))
    with torch.cuda.device(x.device):
        _quantize_kernel[grid](
            x,
            x if smooth is None else smooth,
            act,
            ascales,
            m,
            k,
            k_blocks,
            HAS_SMOOTH=smooth is not None,
            ROWS=BLOCK_ROWS,
            K=BLOCK_K,
        )
    return act, ascales
