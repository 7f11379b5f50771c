"""Probes of ``cvt``: packed narrowing, widening, float to integer and back."""

from __future__ import annotations

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.probe import Probe, Target
from kernel_space.selfcheck.text.ptx_text import elementwise

_F32_PAIRS = bits.tuples(bits.F32_NARROW + bits.F32_EDGES, "cvt pairs", 256, 2)
_F32 = bits.singles(bits.F32_EDGES + bits.F32_NARROW, "cvt f32", 128) + bits.near("cvt near", 128, 1)
_PACKED_HALVES = bits.words(high << 16 | low for high in bits.F16_EDGES for low in bits.F16_EDGES[::3])
_ALL_BYTE_PAIRS = bits.words((255 - low) << 8 | low for low in range(256))
_INTS = bits.singles(bits.INT_EDGES, "cvt ints", 128)

# modifiers of "cvt.<...>.f32 d, a, b": two f32 narrowed to a pair
_PACKED = (
    "rn.f16x2", "rz.f16x2", "rn.relu.f16x2", "rn.bf16x2", "rz.bf16x2", "rn.relu.bf16x2", "rz.relu.f16x2",
    "rn.satfinite.e4m3x2", "rn.satfinite.e5m2x2", "rn.satfinite.relu.e4m3x2", "rn.satfinite.relu.e5m2x2",
)  # fmt: skip
_PACKED_SM100 = (
    "rn.satfinite.e2m1x2", "rn.satfinite.relu.e2m1x2", "rn.satfinite.e2m3x2", "rn.satfinite.e3m2x2",
    "rz.satfinite.ue8m0x2", "rp.satfinite.ue8m0x2",
)  # fmt: skip
# (modifiers, what): one f32 to one value
_SCALARS = (
    ("rn.f16", "b16"), ("rz.f16", "b16"), ("rn.bf16", "b16"), ("rn.relu.f16", "b16"), ("rn.relu.bf16", "b16"),
    ("rna.tf32", "b32"), ("rn.tf32", "b32"), ("rz.tf32", "b32"), ("rn.relu.tf32", "b32"),
    ("rni.s32", "b32"), ("rzi.s32", "b32"), ("rmi.s32", "b32"), ("rpi.s32", "b32"), ("rni.u32", "b32"),
    ("rzi.u32", "b32"), ("rzi.ftz.s32", "b32"), ("rni.f32", "b32"), ("rzi.f32", "b32"), ("rmi.f32", "b32"),
    ("rpi.f32", "b32"), ("sat.f32", "b32"), ("ftz.f32", "b32"), ("rzi.s64", "b64"), ("rni.u64", "b64"), ("f64", "b64"),
    ("rzi.s16", "b16"), ("rzi.u16", "b16"), ("rzi.s8", "b16"), ("rzi.u8", "b16"),
)  # fmt: skip
_INTEGER = ("s8", "u8", "s16", "u16", "s32", "u32")


def probes() -> list[Probe]:
    return [*_packed(), *_scalar(), *_widening(), *_halves_to_eight(), *_integers(), *_to_float(), *_fp4()]


def _packed(names: tuple[str, ...] = _PACKED, target: Target = Target.SM90) -> list[Probe]:
    return [_narrow(name, target) for name in names]


def _narrow(name: str, target: Target) -> Probe:
    kind = name.rpartition(".")[2]
    code = f"cvt.{name}.f32 %x, %a, %b;"
    if kind.startswith("e2m1"):
        code = f"{{ .reg .b8 %byte; cvt.{name}.f32 %byte, %a, %b; cvt.u32.u8 %x, %byte; }}"
    elif kind not in ("f16x2", "bf16x2"):
        code = f"cvt.{name}.f32 %h0, %a, %b;\ncvt.u32.u16 %x, %h0;"
    asks = f"cvt.{name}.f32: ties, denormals, overflow, NaN; which operand goes to the upper half"
    return elementwise(f"convert.{name}.f32", asks, code, _F32_PAIRS, reads=2, target=target)


def _scalar() -> list[Probe]:
    return [_scalar_probe(name, width) for name, width in _SCALARS]


def _scalar_probe(name: str, width: str) -> Probe:
    code = {
        "b16": f"cvt.{name}.f32 %h0, %a;\ncvt.u32.u16 %x, %h0;",
        "b32": f"cvt.{name}.f32 %x, %a;",
        "b64": f"cvt.{name}.f32 %q0, %a;\nmov.b64 {{%x, %y}}, %q0;",
    }[width]
    writes = 2 if width == "b64" else 1
    return elementwise(f"convert.{name}.f32", f"cvt.{name}.f32 of edges", code, _F32, reads=1, writes=writes)


def _widening() -> list[Probe]:
    found = []
    for kind, types in (("rn.f16x2", ("e4m3x2", "e5m2x2")), ("rn.relu.f16x2", ("e4m3x2",))):
        for narrow in types:
            code = f"cvt.u16.u32 %h0, %a;\ncvt.{kind}.{narrow} %x, %h0;"
            asks = f"every value of {narrow[:-2]} as f16"
            found.append(elementwise(f"convert.{kind}.{narrow}", asks, code, _ALL_BYTE_PAIRS, reads=1))
    for half in ("f16", "bf16"):
        code = f"cvt.u16.u32 %h0, %a;\ncvt.f32.{half} %x, %h0;"
        found.append(elementwise(f"convert.f32.{half}", f"{half} widened", code, _PACKED_HALVES, reads=1))
    return found


def _halves_to_eight() -> list[Probe]:
    names = ("rn.satfinite.e4m3x2", "rn.satfinite.e5m2x2", "rn.satfinite.relu.e4m3x2")
    return [
        elementwise(
            f"convert.{name}.f16x2",
            f"cvt.{name}.f16x2: is f16 rounded once, and what becomes of NaN",
            f"cvt.{name}.f16x2 %h0, %a;\ncvt.u32.u16 %x, %h0;",
            _PACKED_HALVES,
            reads=1,
        )
        for name in names
    ]


def _integers() -> list[Probe]:
    """Sign and zero extension, truncation, saturation between integer widths."""
    found = []
    for source in _INTEGER:
        for target in ("s32", "u32") if source[1:] != "32" else ("s16", "u8"):
            for mode in ("", "sat.") if _saturates(source, target) else ("",):
                name = f"{mode}{target}.{source}"
                take = "mov.b32 %r0, %a;" if source[1:] == "32" else "cvt.u16.u32 %h0, %a;"
                give = f"cvt.{name} %x, %h0;"
                if source[1:] == "32":
                    give = f"cvt.{name} %h1, %r0;\ncvt.u32.u16 %x, %h1;"
                asks = f"cvt.{name} reads only the low bits of its source and extends by its type"
                found.append(elementwise(f"convert.{name}", asks, f"{take}\n{give}", _INTS, reads=1))
    code = "cvt.s64.s32 %q0, %a;\nmov.b64 {%x, %y}, %q0;"
    found.append(elementwise("convert.s64.s32", "sign extension to 64 bits", code, _INTS, reads=1, writes=2))
    return found


def _saturates(source: str, target: str) -> bool:
    """PTX takes .sat only where a value of the source may not fit."""
    return source[1:] == "32" or (source[0] == "s" and target[0] == "u")


def _to_float() -> list[Probe]:
    found = []
    for source in ("s32", "u32"):
        for mode in ("rn", "rz"):
            name = f"{mode}.f32.{source}"
            found.append(elementwise(f"convert.{name}", f"cvt.{name}", f"cvt.{name} %x, %a;", _INTS, reads=1))
    code = "mov.b64 %q0, {%a, %b};\ncvt.rn.f32.f64 %x, %q0;"
    doubles = bits.tuples(bits.INT_EDGES, "cvt f64", 128, 2)
    found.append(
        elementwise("convert.rn.f32.f64", "f64 to f32 with denormal results", code, doubles, reads=2)
    )
    return found


def _fp4() -> list[Probe]:
    """Needs a B200: narrow formats of 4 and 6 bits and power-of-two scales."""
    widen = (
        ("e2m1x2", "{ .reg .b8 %byte; cvt.u8.u32 %byte, %a; cvt.rn.f16x2.e2m1x2 %x, %byte; }"),
        ("e2m3x2", "and.b32 %a, %a, 0x3F3F;\ncvt.u16.u32 %h0, %a;\ncvt.rn.f16x2.e2m3x2 %x, %h0;"),
        ("e3m2x2", "and.b32 %a, %a, 0x3F3F;\ncvt.u16.u32 %h0, %a;\ncvt.rn.f16x2.e3m2x2 %x, %h0;"),
        ("ue8m0x2", "cvt.u16.u32 %h0, %a;\ncvt.rn.bf16x2.ue8m0x2 %x, %h0;"),
    )
    return _packed(_PACKED_SM100, Target.SM100A) + [
        elementwise(
            f"convert.rn.{narrow}",
            f"every value of {narrow[:-2]}; which nibble or byte becomes the lower half",
            code,
            _ALL_BYTE_PAIRS,
            reads=1,
            target=Target.SM100A,
        )
        for narrow, code in widen
    ]
