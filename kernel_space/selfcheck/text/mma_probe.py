"""The frame of ``tcgen05.mma`` probes: operands to shared and tensor memory, K steps, commit, dump of D."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernel_space.selfcheck.text import mma_images as images
from kernel_space.selfcheck.text import tensor_text as text
from kernel_space.selfcheck.text.probe import Probe, seeded_bytes

_SFA, _SFB = 256, 272  # TMEM columns of the scale factors
_A_COLUMN = 288  # of an A operand in TMEM
_D_START = 0x3F800000  # accumulator before the probe: 1.0 and a little more in every lane and column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mma:
    """One or more K steps into one accumulator of ``n`` columns.

    ``a``, ``b``   one (rows, 32) byte array per step; under group 2 the rows of both CTAs
    ``scales``     (2, 32, 4) words: SFA and SFB, for lanes 0-31 (copied to the other lanes), columns 0-3
    ``keep``       the first step adds to what is there
    ``raw``        images and descriptor strides (lbo, sbo) are given as they are
    """

    name: str
    asks: str
    kind: str
    idesc: int
    n: int
    a: tuple[np.ndarray, ...]
    b: tuple[np.ndarray, ...]
    scales: np.ndarray | None = None
    group: int = 1
    keep: bool = False
    a_in_tmem: bool = False
    disabled: str = ""
    start: int = _D_START
    strides: tuple[int, int] = (images.LBO, images.SBO)

    def but(self, name: str, asks: str, **changes: Any) -> Mma:
        """The same case under another name, with some fields changed."""
        return dataclasses.replace(self, name=name, asks=asks, **changes)

    def probe(self) -> Probe:
        body = [text.set_columns(max(8, self.n), self.start)]
        if self.scales is not None:
            body.append(self._set_scales())
        if self.a_in_tmem:
            body.append(self._set_a())
        body += [
            text.hand_over(self.group),
            text.in_leader([*self._issue(), text.commit(self.group)], "ISSUED", self.group),
            text.await_commit(),
        ]
        return text.TensorProbe(
            name=f"mma.{self.name}",
            asks=self.asks,
            body="\n".join(body),
            columns=max(8, self.n),
            image=self._image(),
            more=b"" if self.scales is None else self.scales.astype(np.uint32).tobytes(),
            group=self.group,
        ).probe()

    @property
    def _sizes(self) -> tuple[int, int]:
        """Bytes of one step of A and of B in one CTA."""
        return self.a[0].size // self.group, self.b[0].size // self.group

    def _image(self) -> bytes:
        parts = []
        for rank in range(self.group):
            for operand in (self.a, self.b):
                for step in operand:
                    rows = len(step) // self.group
                    parts.append(images.core_matrices(step[rank * rows : (rank + 1) * rows]))
        return b"".join(parts)

    def _issue(self) -> list[str]:
        lines = [
            f"mov.u32 %r10, {self.idesc:#x};",
            f"add.u32 %r11, %r4, {_SFA};",
            f"add.u32 %r12, %r4, {_SFB};",
            f"add.u32 %r13, %r4, {_A_COLUMN};",
            "mov.u32 %r16, 0x0000FFF0;",  # the words of ``disabled``: a bit per lane
            "mov.u32 %r17, 0x80000001;",
        ]
        size_a, size_b = self._sizes
        for step in range(len(self.a)):
            lines += [text.descriptor("%q10", step * size_a, *self.strides)]
            lines += [text.descriptor("%q11", len(self.a) * size_a + step * size_b, *self.strides)]
            lines += [f"setp.eq.u32 %p5, {int(self.keep or step > 0)}, 1;", self._instruction()]
        return lines

    def _instruction(self) -> str:
        a = "[%r13]" if self.a_in_tmem else "%q10"
        scales = ", [%r11], [%r12]" if self.scales is not None else ""
        return f"tcgen05.mma.cta_group::{self.group}.{self.kind} [%r4], {a}, %q11, %r10{scales}{self.disabled}, %p5;"

    def _set_scales(self) -> str:
        """Thread t writes the scale words of lane t % 32 to its own lane."""
        start = len(self._image())
        lines = ["and.b32 %r9, %thread, 31;"]
        for number, column in enumerate((_SFA, _SFB)):
            lines += [
                "mad.wide.u32 %q21, %r9, 16, %in;",
                f"ld.global.v4.b32 {text.registers(4)}, [%q21+{start + 512 * number}];",
                f"add.u32 %r6, %r5, {column};\ntcgen05.st.sync.aligned.32x32b.x4.b32 [%r6], {text.registers(4)};",
            ]
        return "\n".join([*lines, "tcgen05.wait::st.sync.aligned;"])

    def _set_a(self) -> str:
        """Row t of A's first step, 32 bytes, from the image to 8 columns of lane t."""
        lines = [
            "shr.u32 %r14, %thread, 3;\nand.b32 %r15, %thread, 7;\nmul.lo.u32 %r14, %r14, 256;\n"
            "mad.lo.u32 %r14, %r15, 16, %r14;\nadd.u32 %r14, %r14, %r0;"
        ]
        for half in (0, 1):
            lines += [f"ld.shared.v4.b32 {text.registers(4, 20 + 4 * half)}, [%r14+{128 * half}];"]
        lines += [
            f"add.u32 %r6, %r5, {_A_COLUMN};\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%r6], {text.registers(8)};"
        ]
        return "\n".join([*lines, "tcgen05.wait::st.sync.aligned;"])


def random_rows(seed: str, count: int) -> np.ndarray:
    """(count, 32) bytes from a seed: one K step of an operand."""
    return np.frombuffer(seeded_bytes(seed, count * 32), np.uint8).reshape(count, 32)
