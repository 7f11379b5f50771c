"""The Python text of one superblock: loads and stores of registers, guards, blending, side exits.

Registers live in a list per warp and in local variables while a superblock runs. Packs of two 32-bit registers into
a 64-bit one are kept as pairs and only computed if somebody wants the 64-bit value: CuTe DSL uses them as containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernel_space.machine.ptx.cfg import Block, Graph
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Not, Operand, Reg, Special, Symbol, Vec
from kernel_space.machine.values.faults import Unsupported
from kernel_space.machine.values.lanes import FULL, MASKS

_SPECIALS = re.compile(
    r"((n?tid|n?ctaid|n?clusterid|cluster_n?ctaid)\.[xyz])|laneid|warpid|nwarpid|smid|nsmid|gridid|"
    r"cluster_ctarank|cluster_nctarank|is_explicit_cluster|lanemask_(eq|le|lt|ge|gt)|"
    r"dynamic_smem_size|total_smem_size"
)


class Writer:
    """``mask``: expression of the lanes that execute here. ``converged``: it is every lane of the warp.

    ``counts``: the text tells the warp how many instructions it has run. ``wgmma_bits``: of ``wgmma_order``.
    """

    def __init__(
        self, graph: Graph, varying: int, symbols: dict[str, str], *, partial: bool, counts: bool
    ) -> None:
        self.graph, self.varying, self.symbols = graph, varying, symbols
        self.lines: list[str] = []
        self.depth = 1
        self.mask = "m" if partial else str(FULL)
        self.converged = not partial
        self.loaded: set[int] = set()
        self.dirty: set[int] = set()
        self.pairs: dict[int, tuple[str, str, bool]] = {}
        self.counts, self.counted = counts, 0
        self.temporaries = 0
        self.site = 0
        self.instr: Instr | None = None
        self.block: Block | None = None
        self.wgmma_bits: Mapping[int, int] = {}
        self.tensor_users: Mapping[int, frozenset[int]] = {}
        self.shared_users: frozenset[int] = frozenset()

    # -- text ------------------------------------------------------------------------------------------------
    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def meet(self) -> None:
        """The lanes that execute this wait for each other."""
        if self.counts:
            self.emit("w.meetings += 1")

    def temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def fail(self, what: str, modifier: str = "") -> Unsupported:
        instr = self.instr
        assert instr is not None
        return Unsupported(what, line=instr.line, opcode=instr.opcode, modifier=modifier)

    # -- reading ---------------------------------------------------------------------------------------------
    @staticmethod
    def local(register: Reg) -> str:
        return f"r{register.slot}"

    def varies(self, operand: Operand) -> bool:
        """May the operand differ between lanes?"""
        match operand:
            case Reg():
                return bool(self.varying >> operand.slot & 1)
            case Not(inner):
                return self.varies(inner)
            case Special(name):
                return name in ("tid.x", "tid.y", "tid.z", "laneid") or name.startswith("lanemask")
            case Vec(items):
                return any(self.varies(item) for item in items)
        return False

    def read(self, operand: Operand, width: int = 32) -> str:
        """Expression of a source operand; integer literals are reduced to ``width`` bits."""
        match operand:
            case Reg():
                return self._read_register(operand)
            case Imm(value):
                return str(value & MASKS.get(width, 1 if width == 1 else (1 << width) - 1))
            case Special(name):
                return self._special(name)
            case Symbol(name):
                if name in self.symbols:
                    return self.symbols[name]
                raise self.fail(f"unknown symbol {name}")
            case Not(inner):
                return f"({self.read(inner, 1)} ^ {FULL})"
            case Vec(items):
                return self._read_vector(items, width)
        raise self.fail(f"cannot read {operand}")

    def predicate(self, operand: Operand) -> str:
        """A predicate as a lane mask."""
        if isinstance(operand, Imm):
            return str(FULL if operand.value else 0)
        return self.read(operand, 1)

    def _read_register(self, register: Reg) -> str:
        slot, name = register.slot, self.local(register)
        if slot in self.pairs:
            low, high, varying = self.pairs.pop(slot)
            self.emit(f"{name} = pack({low}, {high}, 32)" if varying else f"{name} = {low} | {high} << 32")
            self.loaded.add(slot)
        elif slot not in self.loaded:
            self.emit(f"{name} = R[{slot}]")
            self.loaded.add(slot)
        return name

    def _read_vector(self, items: tuple[Operand, ...], width: int) -> str:
        part = width // len(items)
        texts = [self.read(item, part) for item in items]
        result = texts[0]
        for number, text in enumerate(texts[1:], 1):
            if any(self.varies(item) for item in items):
                result = f"pack_parts({result}, {text}, {part * number}, {width})"
            else:
                result = f"({result} | {text} << {part * number})"
        return result

    def _special(self, name: str) -> str:
        if name == "clock" or name == "clock64" or name == "globaltimer":
            return f"w.read_clock({name == 'clock'})"
        if not _SPECIALS.fullmatch(name):
            raise self.fail(f"special register %{name} is not modelled")
        return "w.sr_" + name.replace(".", "_")

    # -- writing ---------------------------------------------------------------------------------------------
    def write(self, target: Operand, expression: str) -> None:
        """Define a destination; ``_`` swallows the value."""
        if isinstance(target, Symbol) and target.name == "_":
            return
        if not isinstance(target, Reg):
            raise self.fail(f"cannot write to {target}")
        slot, name = target.slot, self.local(target)
        self._before_overwrite(slot)
        if self._needs_blend(target):
            old = self._read_register(target)
            width = target.width
            if width == 1:
                expression = f"({expression}) & {self.mask} | {old} & ~{self.mask}"
            else:
                expression = f"blend({expression}, {old}, {self.mask}, {width})"
        self.pairs.pop(slot, None)
        self.emit(f"{name} = {expression}")
        self.loaded.add(slot)
        self.dirty.add(slot)

    def write_pair(self, target: Reg, low: str, high: str, varying: bool) -> None:
        """Define a 64-bit register as two 32-bit local values."""
        if self._needs_blend(target):
            self.write(target, f"pack({low}, {high}, 32)")
            return
        self._before_overwrite(target.slot)
        self.pairs[target.slot] = (low, high, varying)
        self.loaded.discard(target.slot)
        self.dirty.add(target.slot)

    def pair_of(self, operand: Operand) -> tuple[str, str] | None:
        if isinstance(operand, Reg) and operand.slot in self.pairs:
            low, high, _ = self.pairs[operand.slot]
            return low, high
        return None

    def _needs_blend(self, target: Reg) -> bool:
        return not self.converged and bool(self.varying >> target.slot & 1)

    def _before_overwrite(self, slot: int) -> None:
        """Pairs that use the local about to change must be computed now."""
        name = f"r{slot}"
        for owner, (low, high, _) in list(self.pairs.items()):
            if name in (low, high) and owner != slot:
                self._read_register(self.graph.kernel.registers[owner])

    # -- guards and regions ------------------------------------------------------------------------------------
    def preload(self, instrs: Sequence[Instr], wanted: int) -> None:
        """Before conditional code: load what it may leave unwritten and compute the pairs it would break."""
        for instr in instrs:
            for register in instr.definitions:
                self._before_overwrite(register.slot)
                if wanted >> register.slot & 1 and register.slot not in self.loaded:
                    self._read_register(register)

    def open_region(self, condition: str, mask: str | None) -> tuple[set[int], str, bool, dict]:
        """``if condition:`` with another mask; returns what ``close_region`` needs."""
        saved = (set(self.loaded), self.mask, self.converged, dict(self.pairs))
        self.emit(f"if {condition}:")
        self.depth += 1
        if mask is not None:
            self.mask, self.converged = mask, False
        return saved

    def close_region(self, saved: tuple[set[int], str, bool, dict], wanted: int) -> None:
        loaded, mask, converged, pairs = saved
        for slot in [slot for slot in self.pairs if slot not in pairs]:
            if wanted >> slot & 1:
                self._read_register(self.graph.kernel.registers[slot])
        if self.lines[-1].endswith(":"):
            self.emit("pass")
        self.depth -= 1
        self.loaded, self.mask, self.converged, self.pairs = loaded, mask, converged, pairs

    # -- leaving -----------------------------------------------------------------------------------------------
    def store(self, live: int) -> None:
        """Write changed registers that are still wanted back to the register list."""
        for slot in sorted(self.dirty):
            if not live >> slot & 1:
                continue
            if slot in self.pairs:
                low, high, varying = self.pairs[slot]
                self.emit(
                    f"R[{slot}] = pack({low}, {high}, 32)" if varying else f"R[{slot}] = {low} | {high} << 32"
                )
            else:
                self.emit(f"R[{slot}] = r{slot}")

    def count(self) -> None:
        if self.counts and self.counted:
            self.emit(f"w.executed += {self.counted}")

    def leave(self, target: str, live: int) -> None:
        """Side exit or end: count, store, return."""
        self.count()
        self.store(live)
        self.emit(f"return {target}")

    def touches(self, instr: Instr) -> None:
        """Load every register of an instruction, so that conditional code finds it."""
        for register in instr.uses + instr.definitions:
            if register.slot in self.pairs or register.slot not in self.loaded:
                self._read_register(register)
