"""Undefined bytes in tensor copies, ``st.async`` and scale factors on their way through ``tcgen05.cp``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.ptx import run_body
from tests.machine.tensor_maps import tensor_map
from tests.machine.test_st_async import BODY, WAIT
from tests.machine.test_tensor_core import block_scaled_image, block_scaled_issue
from tests.machine.test_undefined_products import tensor
from tests.machine.undefined_programs import assert_left, store

PARAMS = ".param .align 64 .b8 map[128], .param .u64 out"
# 16 rows of 64 bytes in shared memory, 32 bytes a thread, to a tensor of 72 bytes a row from column 16 on.
TMA_STORE = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
mad.lo.u32 %r11, %r1, 32, %r10;
setp.lt.u32 %p1, %r1, {threads};
@%p1 st.shared.v4.b32 [%r11], {{%r1, %r1, %r1, %r1}};
@%p1 st.shared.v4.b32 [%r11+16], {{%r1, %r1, %r1, %r1}};
fence.proxy.async.shared::cta;
bar.sync 0;
setp.ne.u32 %p3, %r1, 0;
@%p3 bra END;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {{16, 0}}], [%r10];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
END:
"""


@pytest.mark.parametrize("swizzle", [0, 64])
def test_tma_store(swizzle: int) -> None:
    """The last row is missing: 56 bytes of the tensor; 8 more are padding of the pitch."""
    out = np.zeros((16, 80), np.uint8)
    descriptor = tensor_map(out.ctypes.data, "u8", (72, 16), (80,), (64, 16), swizzle)
    result = run_body(TMA_STORE.format(threads=32), descriptor, out, params=PARAMS, smem_bytes=1024)
    assert result.ok and out[15, 16:72].any()
    result = run_body(TMA_STORE.format(threads=30), descriptor, out, params=PARAMS, smem_bytes=1024)
    assert_left(
        result, 56, 15 * 80 + 16, "never written; first read by warp0", "cp.async.bulk.tensor.2d.global"
    )
    assert "SMEM offset 0x7" in str(result)  # row 15 begins at 0x400 + 15 * 64


def test_a_tma_store_of_padding_alone() -> None:
    """The last 16 bytes of a row hold 8 of the tensor: what lies behind them may be undefined."""
    out = np.zeros((16, 80), np.uint8)
    descriptor = tensor_map(out.ctypes.data, "u8", (72, 16), (80,), (64, 16))
    body = TMA_STORE.format(threads=0).replace(
        "fence", "setp.lt.u32 %p2, %r1, 16;\nmad.lo.u32 %r12, %r1, 64, %r10;\n" + "".join(
            f"@%p2 st.shared.v2.b32 [%r12+{at}], {{%r1, %r1}};\n" for at in range(0, 56, 8)
        ) + "fence", 1,
    )  # fmt: skip
    result = run_body(body, descriptor, out, params=PARAMS, smem_bytes=1024)
    assert result.ok, str(result)
    assert out[:, 16].tolist() == list(range(16))


def test_tma_load_of_what_the_kernel_left_undefined() -> None:
    """Lane 5's word of a workspace is undefined, and comes back by TMA."""
    out, workspace = np.zeros(32, np.uint32), np.zeros((4, 32), np.uint8)
    descriptor = tensor_map(workspace.ctypes.data, "u8", (32, 4), (32,), (32, 4))
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r10, smem;
    ld.param.u64 %d1, [workspace];
    mad.wide.u32 %d2, %r1, 4, %d1;
    setp.ne.u32 %p2, %r1, 5;
    @%p2 mov.b32 %r7, 3;
    st.global.b32 [%d2], %r7;
    fence.proxy.async.global;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r10+512], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10+512], 128;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r10], [map, {0, 0}], [%r10+512];
    READY:
    bar.sync 0;
    LOOP:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r10+512], 0;
    @!%p3 bra LOOP;
    mad.lo.u32 %r11, %r1, 4, %r10;
    ld.shared.b32 %r12, [%r11];
    mov.b32 %r13, 0;
    st.global.b32 [%d2], %r13;
    """ + store("%r12")
    result = run_body(
        body, descriptor, out, workspace, params=PARAMS + ", .param .u64 workspace", smem_bytes=1024
    )
    assert_left(result, 4, 20, "born as register %r7, never written", "st.global.b32 [%d60]")
    assert out.tolist() == [3] * 5 + [out[5]] + [3] * 26


@pytest.mark.parametrize("schedule", ["eager", "slow_tma"])
def test_st_async(schedule: str) -> None:
    out = np.zeros((2, 32, 2), np.uint32)
    body = BODY.format(expected=256, wait=WAIT).replace("add.u32 %r7, %r6, 1000;\n", "")
    result = run_body(body, out, grid=(2, 1, 1), cluster=(2, 1, 1), smem_bytes=512, schedule=schedule)
    assert_left(result, 2 * 32 * 4, 4, "born as register %r7, never written", "st.global.v2.u32")


def test_scale_factors_on_their_way_through_tensor_memory() -> None:
    """Of the last atom of B's factors, those of row 31 are missing: columns 31, 63, 95 and 127 of the result."""
    codes, ones = np.zeros((128, 128), np.uint8), np.full((128, 16), 7 << 3, np.uint8)
    image, a, b = block_scaled_image(codes, codes, ones, ones)
    issue = block_scaled_issue(
        "mxf4nvf4", "block16", 1 << 7 | 1 << 10 | 128 >> 3 << 17 | 8 << 24, a, b, (0,) * 4
    )
    assert tensor(issue, image, image.size, 128)[0].ok
    result, _ = tensor(issue, image, image.size - 16, 128)
    assert_left(result, 128 * 4 * 4, 31 * 4, f"SMEM offset {0x800 + image.size - 16:#x}, never written")
