"""tcgen05.mma, cp, ld, st and commit against float64 products; operand images are placed byte by byte in the test."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.ptx import run_body

BASE = 0x800  # shared offset of the image: 0x400 reserved, 1024 bytes of barriers
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
LAYOUT = {0: 0, 32: 6, 64: 4, 128: 2}

PROGRAM = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
ld.param.u64 %d2, [image];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r10], 1;
mbarrier.init.shared.b64 [%r10+8], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {bytes};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10+1024], [%d2], {bytes}, [%r10];
READY:
setp.ne.u32 %p2, %r2, 0;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+16], 512;
ALLOCATED:
bar.sync 0;
ld.shared.u32 %r20, [%r10+16];
@%p1 bra ISSUED;
L1:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
@!%p3 bra L1;
{issue}
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10+8];
ISSUED:
L2:
mbarrier.try_wait.parity.shared.b64 %p4, [%r10+8], 0;
@!%p4 bra L2;
shl.b32 %r21, %r2, 21;
add.u32 %r22, %r20, %r21;
mul.wide.u32 %d3, %r1, {row_bytes};
add.u64 %d3, %d3, %d1;
{drain}
bar.sync 0;
@%p2 bra END;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 512;
END:
"""


def drain(columns: int) -> str:
    """Every thread stores its lane's columns."""
    lines = []
    for start in range(0, columns, 32):
        registers = ", ".join(f"%r{100 + n}" for n in range(32))
        lines.append(f"add.u32 %r23, %r22, {start};")
        lines.append(f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{registers}}}, [%r23];")
        lines.append("tcgen05.wait::ld.sync.aligned;")
        lines += [f"st.global.u32 [%d3+{4 * (start + n)}], %r{100 + n};" for n in range(32)]
    return "\n".join(lines)


def multiply(image: np.ndarray, issue: str, columns: int, **options: object) -> np.ndarray:
    """The accumulator after the MMAs: words [128 lanes, columns]."""
    out = np.zeros((128, columns), np.uint32)
    body = PROGRAM.format(bytes=image.size, issue=issue, row_bytes=4 * columns, drain=drain(columns))
    result = run_body(
        body, out, image, params=".param .u64 out, .param .u64 image", block=(128, 1, 1),
        smem_bytes=1024 + image.size, **options,
    )  # fmt: skip
    assert result.ok, str(result)
    return out


def swizzled(offset: int, span: int) -> int:
    address = BASE + offset
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    return (address ^ ((address >> 7 & mask) << 4)) - BASE


def place_k_major(image: np.ndarray, at: int, data: np.ndarray, span: int) -> tuple[int, int]:
    """Bytes [rows, k bytes] of one operand into the image; returns (LBO, SBO) in bytes."""
    rows, width = data.shape
    lbo, sbo = (128, 16 * width // 2) if not span else (16, 8 * span)
    if not span:
        sbo = width // 16 * 128
    for row in range(rows):
        for byte in range(width):
            if span:
                offset = swizzled(at + row // 8 * sbo + row % 8 * span + byte, span)
            else:
                offset = at + row // 8 * sbo + byte // 16 * lbo + row % 8 * 16 + byte % 16
            image[offset] = data[row, byte]
    return lbo, sbo


def place_mn_major(image: np.ndarray, at: int, values: np.ndarray, span: int) -> tuple[int, int]:
    """Elements [rows, k] with rows contiguous."""
    rows, depth = values.shape
    size = values.itemsize
    wide = span // size
    sbo, lbo = 8 * span, 8 * span * (depth // 8)
    for row in range(rows):
        for k in range(depth):
            offset = at + row % wide * size + row // wide * lbo + k % 8 * span + k // 8 * sbo
            place = swizzled(offset, span)
            image[place : place + size] = np.frombuffer(values[row, k].tobytes(), np.uint8)
    return lbo, sbo


def descriptor(at: int, lbo: int, sbo: int, span: int) -> int:
    return (BASE + at) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 46 | LAYOUT[span] << 61


def dense_idesc(m: int, n: int, a: int, b: int, d: int = 1, a_mn: bool = False, b_mn: bool = False) -> int:
    return d << 4 | a << 7 | b << 10 | a_mn << 15 | b_mn << 16 | n >> 3 << 17 | m >> 4 << 24


def steps(kind: str, idesc: int, a: int, b: int, count: int, stride: int = 2, extra: str = "") -> str:
    """MMAs over K: descriptors advance by ``stride`` units of 16 bytes; the first overwrites."""
    lines = [f"mov.b32 %r30, {idesc};"]
    for step in range(count):
        lines.append(f"mov.b64 %d10, {a + step * stride};\nmov.b64 %d11, {b + step * stride};")
        lines.append(f"setp.ne.u32 %p9, {step}, 0;")
        lines.append(f"tcgen05.mma.cta_group::1.kind::{kind} [%r20], %d10, %d11, %r30, {extra}%p9;")
    return "\n".join(lines)


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_f16_k_major(span: int) -> None:
    random = np.random.default_rng(span)
    width = span or 64
    a = random.integers(-4, 5, (128, width // 2)).astype(np.float16)
    b = random.integers(-4, 5, (64, width // 2)).astype(np.float16)
    image = np.zeros(128 * width + 64 * width, np.uint8)
    lbo, sbo = place_k_major(image, 0, a.view(np.uint8), span)
    place_k_major(image, 128 * width, b.view(np.uint8), span)
    da, db = descriptor(0, lbo, sbo, span), descriptor(128 * width, lbo, sbo, span)
    advance = 2 if span else 16  # without swizzle 32 bytes of K are two core matrices of 128 bytes
    issue = steps("f16", dense_idesc(128, 64, 0, 0), da, db, width // 32, advance)
    out = multiply(image, issue, 64).view(np.float32)
    assert np.array_equal(out, a.astype(np.float64) @ b.astype(np.float64).T)


def test_f16_mn_major() -> None:
    random = np.random.default_rng(7)
    a = random.integers(-4, 5, (128, 16)).astype(np.float16)
    b = random.integers(-4, 5, (64, 16)).astype(np.float16)
    image = np.zeros(128 * 32 + 64 * 32, np.uint8)
    lbo_a, sbo = place_mn_major(image, 0, a, 128)
    lbo_b, _ = place_mn_major(image, 4096, b, 128)
    idesc = dense_idesc(128, 64, 0, 0, a_mn=True, b_mn=True)
    issue = steps("f16", idesc, descriptor(0, lbo_a, sbo, 128), descriptor(4096, lbo_b, sbo, 128), 1)
    out = multiply(image, issue, 64).view(np.float32)
    assert np.array_equal(out, a.astype(np.float64) @ b.astype(np.float64).T)


def k_major_128(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Image and descriptors of two byte operands with 128 bytes of K, swizzle 128."""
    image = np.zeros((a.shape[0] + b.shape[0]) * 128, np.uint8)
    _, sbo = place_k_major(image, 0, a, 128)
    place_k_major(image, a.shape[0] * 128, b, 128)
    return image, descriptor(0, 16, sbo, 128), descriptor(a.shape[0] * 128, 16, sbo, 128)


def test_m64_uses_sixteen_lanes_of_each_quarter() -> None:
    """Row r of 64 is lane 32 (r / 16) + r % 16; the other lanes stay as they were."""
    random = np.random.default_rng(8)
    a = random.integers(-4, 5, (64, 64)).astype(np.float16)
    b = random.integers(-4, 5, (64, 64)).astype(np.float16)
    image, da, db = k_major_128(a.view(np.uint8), b.view(np.uint8))
    out = multiply(image, steps("f16", dense_idesc(64, 64, 0, 0), da, db, 4), 64, check_races=False)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    for row in range(64):
        assert np.array_equal(out.view(np.float32)[32 * (row // 16) + row % 16], expected[row])
    assert (out[16:32] == 0xFFFFFFFF).all()


def test_integers_accumulate_in_32_bits() -> None:
    random = np.random.default_rng(9)
    a, b = random.integers(-128, 128, (128, 128)), random.integers(0, 256, (64, 128))
    image, da, db = k_major_128(a.astype(np.int8).view(np.uint8), b.astype(np.uint8))
    out = multiply(image, steps("i8", dense_idesc(128, 64, 1, 0, d=2), da, db, 4), 64).view(np.int32)
    assert np.array_equal(out, a @ b.T)


@pytest.mark.parametrize(("name", "code"), [("float8_e4m3fn", 0), ("float8_e5m2", 1)])
def test_fp8_formats(name: str, code: int) -> None:
    """Values of every code whose magnitude keeps the float32 sum exact, decoded by torch."""
    torch = pytest.importorskip("torch")
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).double()
    usable = torch.nonzero((values.abs() >= 0.25) & (values.abs() <= 16)).flatten()
    random = np.random.default_rng(code)
    a = usable[random.integers(0, len(usable), (128, 128))].to(torch.uint8)
    b = usable[random.integers(0, len(usable), (64, 128))].to(torch.uint8)
    image, da, db = k_major_128(a.numpy(), b.numpy())
    out = multiply(image, steps("f8f6f4", dense_idesc(128, 64, code, code), da, db, 4), 64).view(np.float32)
    expected = values[a.long()] @ values[b.long()].T
    assert np.array_equal(out, expected.numpy())


def test_tf32_ignores_the_low_mantissa_bits() -> None:
    random = np.random.default_rng(10)
    a = random.integers(-4, 5, (128, 32)).astype(np.float32)
    b = random.integers(-4, 5, (64, 32)).astype(np.float32)
    noisy = (a.view(np.uint32) | np.where(a == 0, 0, 0x1FFF).astype(np.uint32)).view(np.uint8)
    image, da, db = k_major_128(noisy, b.view(np.uint8))
    out = multiply(image, steps("tf32", dense_idesc(128, 64, 2, 2), da, db, 4), 64).view(np.float32)
    assert np.array_equal(out, a.astype(np.float64) @ b.astype(np.float64).T)


def test_negate_a() -> None:
    a = np.full((128, 64), 2, np.float16)
    b = np.full((64, 64), 3, np.float16)
    image, da, db = k_major_128(a.view(np.uint8), b.view(np.uint8))
    out = multiply(image, steps("f16", dense_idesc(128, 64, 0, 0) | 1 << 13, da, db, 4), 64).view(np.float32)
    assert (out == -6 * 64).all()


def test_disabled_lanes_keep_their_value() -> None:
    """A second MMA with lanes 0-31 disabled doubles the others only."""
    a = np.full((128, 64), 1, np.float16)
    image, da, db = k_major_128(a.view(np.uint8), np.full((64, 64), 1, np.float16).view(np.uint8))
    first = steps("f16", dense_idesc(128, 64, 0, 0), da, db, 4)
    second = "mov.b32 %r31, -1;\nmov.b32 %r32, 0;\nmov.pred %p9, 1;\n"
    for step in range(4):
        second += f"mov.b64 %d10, {da + 2 * step};\nmov.b64 %d11, {db + 2 * step};\n"
        second += (
            "tcgen05.mma.cta_group::1.kind::f16 [%r20], %d10, %d11, %r30, {%r31, %r32, %r32, %r32}, %p9;\n"
        )
    out = multiply(image, first + "\n" + second, 64).view(np.float32)
    assert (out[:32] == 64).all() and (out[32:] == 128).all()


def block_scaled_image(
    a: np.ndarray, b: np.ndarray, sfa: np.ndarray, sfb: np.ndarray
) -> tuple[np.ndarray, int, int]:
    """Operands (K = 128 bytes) with the scale-factor atoms of their K steps behind them."""
    image, da, db = k_major_128(a, b)
    atoms = []
    for factors in (sfa, sfb):  # [128 rows, 16 bytes]: 4 K steps of 4 bytes
        for step in range(4):
            atom = np.zeros((32, 16), np.uint8)
            for row in range(128):
                atom[row % 32, 4 * (row // 32) : 4 * (row // 32) + 4] = factors[row, 4 * step : 4 * step + 4]
            atoms.append(atom.reshape(-1))
    return np.concatenate([image, *atoms]), da, db


def block_scaled_issue(kind: str, size: str, idesc: int, da: int, db: int, ids: tuple[int, ...]) -> str:
    """Copies of 8 scale-factor atoms to columns 256.., then 4 MMAs."""
    lines = []
    for atom in range(8):
        start = descriptor(256 * 128 + 512 * atom, 16, 128, 0)
        lines.append(f"mov.b64 %d12, {start};\nadd.u32 %r33, %r20, {256 + 4 * atom};")
        lines.append("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r33], %d12;")
    for step in range(4):
        sf_id = ids[step]
        lines.append(f"mov.b32 %r30, {idesc | sf_id << 29 | sf_id << 4};")
        lines.append(f"mov.b64 %d10, {da + 2 * step};\nmov.b64 %d11, {db + 2 * step};")
        lines.append(f"setp.ne.u32 %p9, {step}, 0;")
        atom = step if kind == "mxf4nvf4" else 0
        lines.append(f"add.u32 %r34, %r20, {256 + 4 * atom};\nadd.u32 %r35, %r20, {272 + 4 * atom};")
        lines.append(
            f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale.{size} [%r20], %d10, %d11, %r30, [%r34], [%r35], %p9;"
        )
    return "\n".join(lines)


def fp4_values(codes: np.ndarray) -> np.ndarray:
    table = np.array(E2M1)
    return np.stack([table[codes & 15], table[codes >> 4]], axis=-1).reshape(codes.shape[0], -1)


def test_nvfp4_block_scaled() -> None:
    """K = 256, one E4M3 factor (a power of two, so that sums are exact) per 16 elements."""
    random = np.random.default_rng(11)
    a, b = random.integers(0, 256, (128, 128), np.uint8), random.integers(0, 256, (128, 128), np.uint8)
    exponents = [random.integers(-2, 3, (128, 16)) for _ in range(2)]
    codes = [((e + 7) << 3).astype(np.uint8) for e in exponents]
    image, da, db = block_scaled_image(a, b, *codes)
    idesc = 1 << 7 | 1 << 10 | 128 >> 3 << 17 | 128 >> 4 << 24
    out = multiply(image, block_scaled_issue("mxf4nvf4", "block16", idesc, da, db, (0,) * 4), 128).view(
        np.float32
    )
    wide = [fp4_values(x) * np.repeat(2.0**e, 16, axis=1) for x, e in zip((a, b), exponents, strict=True)]
    assert np.array_equal(out, wide[0] @ wide[1].T)


def test_mxf8_takes_the_byte_its_id_names() -> None:
    """UE8M0, one factor per 32 elements of K; the id selects a byte of the same word in each of four steps."""
    torch = pytest.importorskip("torch")
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    usable = np.nonzero((np.abs(values) >= 0.5) & (np.abs(values) <= 4))[0]
    random = np.random.default_rng(12)
    a, b = (usable[random.integers(0, len(usable), (128, 128))].astype(np.uint8) for _ in range(2))
    exponents = [random.integers(-2, 3, (128, 4)) for _ in range(2)]
    factors = [np.tile((e + 127).astype(np.uint8), (1, 4)) for e in exponents]
    image, da, db = block_scaled_image(a, b, *factors)
    idesc = 1 << 23 | 128 >> 3 << 17 | 128 >> 4 << 24
    out = multiply(image, block_scaled_issue("mxf8f6f4", "block32", idesc, da, db, (0, 1, 2, 3)), 128).view(
        np.float32
    )
    wide = [values[x] * np.repeat(2.0**e, 32, axis=1) for x, e in zip((a, b), exponents, strict=True)]
    assert np.array_equal(out, wide[0] @ wide[1].T)


def test_accumulator_in_columns_nobody_allocated() -> None:
    image, da, db = k_major_128(np.zeros((128, 128), np.uint8), np.zeros((64, 128), np.uint8))
    issue = "add.u32 %r20, %r20, 480;\n" + steps("f16", dense_idesc(128, 64, 0, 0), da, db, 1)
    with pytest.raises(AssertionError, match="touches TMEM columns 480..544"):
        multiply(image, issue, 64)


@pytest.mark.parametrize("schedule", ["random", "slow_tensor", "slow_tma"])
def test_sums_do_not_depend_on_the_schedule(schedule: str) -> None:
    random = np.random.default_rng(13)
    a, b = (random.standard_normal((n, 64)).astype(np.float16) for n in (128, 64))
    image, da, db = k_major_128(a.view(np.uint8), b.view(np.uint8))
    issue = steps("f16", dense_idesc(128, 64, 0, 0), da, db, 4)
    assert np.array_equal(multiply(image, issue, 64), multiply(image, issue, 64, schedule=schedule, seed=3))
