"""Basic blocks -> Python functions.

One function per entry block, made on first use, runs a superblock: the block, what follows it without a wait or a
backward branch, and, inlined under a lane mask, the one-block bodies of ``elect.sync``. Two versions exist: for all
lanes, and for a part of them (``m``), which blends the varying registers. A function returns the next block or one
of the codes below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from kernel_space.machine.opcodes.table import find_opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.cfg import EXIT, POLLS, Block, Graph, build_graph, ends_flow, starts_block
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Reg
from kernel_space.machine.ptx.parse import Kernel, parse_ptx
from kernel_space.machine.ptx.uniformity import varying_registers
from kernel_space.machine.translate import runtime_names
from kernel_space.machine.translate.definedness import Tracker, candidates, maybe_undefined
from kernel_space.machine.translate.flow import Flow
from kernel_space.machine.units import shared_loads, tensor_loads
from kernel_space.machine.units.registers import registers_at_launch
from kernel_space.machine.units.wgmma_order import emit_access, register_bits
from kernel_space.machine.values.address_windows import LOCAL_WINDOW, MODULE_WINDOW, PARAM_WINDOW
from kernel_space.machine.values.faults import Unsupported

AGAIN = -2  # the first instruction of the block has to wait: run the block again when woken
LATER = -3  # the warp waits and goes on at ``warp.pc``
SPLIT = -4  # lanes went different ways: see ``warp.frames``
MAX_INSTRS = 300


BlockFunction = Callable[..., int]
Registers = Sequence[Any]


def _first_time(index: int, in_part: bool, warp: Any, registers: Registers, *mask: int) -> int:
    """Stands for a block until a warp gets there."""
    function = warp.machine.program.translated(index, partial=in_part, entry=registers)
    return function(warp, registers, *mask)


class Program:
    """A translated kernel. ``full[i](warp, registers)`` and ``part[i](warp, registers, mask)`` run block ``i``."""

    names: ClassVar[dict[str, Any]] = dict(runtime_names.NAMES)
    counts: ClassVar[bool] = True  # instructions, for limits and traces
    tracks: ClassVar[bool] = True  # undefined values
    covers: ClassVar[bool] = False  # calls ``seen(warp, site, lanes)`` of the program for every instruction

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.graph: Graph = build_graph(kernel)
        self.varying = varying_registers(self.graph)
        self.maybe_unwritten = candidates(self.graph) if self.tracks else frozenset[int]()
        self.maybe_undefined = maybe_undefined(self.graph) if self.tracks else 0
        self.flows: dict[int, Flow] = {}
        self.registers_at_launch = registers_at_launch(kernel)
        self.wgmma_bits = register_bits(kernel)
        self.tensor_users = tensor_loads.users_of_loads(kernel) if self.tracks else {}
        none = frozenset[int]()
        self.open_loads, self.shared_users = (
            shared_loads.open_loads(self.graph) if self.tracks else (none, none)
        )
        self.layout = SharedLayout(kernel)
        self.symbols = self._symbols()
        self.sites: list[Instr] = kernel.instrs
        self._site_of = {id(instr): number for number, instr in enumerate(kernel.instrs)}
        count = len(self.graph.blocks)
        self.predecessors = [0] * count
        for block in self.graph.blocks:
            for target in block.successors:
                if target != EXIT:
                    self.predecessors[target] += 1
        self.full: list[BlockFunction] = [
            functools.partial(_first_time, index, False) for index in range(count)
        ]
        self.part: list[BlockFunction] = [
            functools.partial(_first_time, index, True) for index in range(count)
        ]

    def _symbols(self) -> dict[str, str]:
        symbols = {name: f"(w.shared_base + {offset})" for name, offset in self.layout.offsets.items()}
        symbols |= self._local_symbols()
        there = [variable for variable in self.kernel.variables if variable.space == "global"]
        symbols |= {variable.name: str(MODULE_WINDOW + (n << 32)) for n, variable in enumerate(there)}
        offset = 0
        self.param_offsets: list[int] = []
        for param in self.kernel.params:
            offset = -(-offset // param.align) * param.align
            self.param_offsets.append(offset)
            symbols[param.name] = str(PARAM_WINDOW + offset)
            offset += param.size
        self.param_bytes = offset
        return symbols

    def _local_symbols(self) -> dict[str, str]:
        """Addresses of ``.local`` variables; sets ``local_bytes``, what a lane needs for them."""
        symbols, at = {}, 0
        for variable in self.kernel.variables:
            if variable.space == "local":
                at = -(-at // variable.align) * variable.align
                symbols[variable.name] = str(LOCAL_WINDOW + at)
                at += variable.size
        self.local_bytes = -(-at // 8) * 8
        return symbols

    def translated(self, index: int, *, partial: bool, entry: Registers | None = None) -> BlockFunction:
        """Block ``index`` as a function, which takes its place from now on. ``entry``: as for ``python_text``."""
        text = self.python_text(index, partial=partial, entry=entry)
        made: dict[str, BlockFunction] = {}
        exec(compile(text, f"<ptx block {index}{' part' if partial else ''}>", "exec"), self.names, made)
        (self.part if partial else self.full)[index] = made["block"]
        return made["block"]

    def python_text(self, index: int, *, partial: bool, entry: Registers | None = None) -> str:
        """The generated source. ``entry``: registers of the warp that is about to run it; what lies behind a branch
        that this warp takes is left out, and translated when another one does not take it."""
        writer = Writer(self.graph, self.varying, self.symbols, partial=partial, counts=self.counts)
        writer.wgmma_bits, writer.tensor_users = self.wgmma_bits, self.tensor_users
        writer.shared_users = self.shared_users
        superblock = _Superblock(self, writer, index, entry)
        superblock.write()
        arguments = "w, R, m" if partial else "w, R"
        whole = f"w.machine.program.translated({index}, partial={partial})({arguments})"
        unexpected = [f"    if {condition}: return {whole}" for condition in superblock.unexpected]
        held = ["    U = w.undefined"] if superblock.tracker.used else []
        return "\n".join([f"def block({arguments}):", *unexpected, *held, *writer.lines, ""])

    def site(self, instr: Instr) -> int:
        return self._site_of[id(instr)]

    def check(self) -> None:
        """Translate every block now. Raises ``Unsupported`` for what the machine does not model."""
        for index in range(len(self.graph.blocks)):
            self.python_text(index, partial=False)


class SharedLayout:
    """Offsets of shared variables: static ones from 0x400 on, then the dynamic array, aligned as declared."""

    START = 0x400

    def __init__(self, kernel: Kernel) -> None:
        self.offsets: dict[str, int] = {}
        at = self.START
        shared = [variable for variable in kernel.variables if variable.space == "shared"]
        for variable in sorted(shared, key=lambda item: item.extern):
            at = -(-at // variable.align) * variable.align
            self.offsets[variable.name] = at
            at += variable.size
        self.static_end = at
        self.dynamic = next((self.offsets[item.name] for item in shared if item.extern), at)


class _Superblock:
    """``unexpected``: conditions on the registers at its entry under which its text is not the whole story."""

    def __init__(self, program: Program, writer: Writer, start: int, entry: Registers | None) -> None:
        self.program, self.graph, self.w, self.start = program, program.graph, writer, start
        self.entry, self.unexpected = entry, list[str]()
        self.tracker = Tracker(writer, program.maybe_undefined)
        self.instrs = 0

    def write(self) -> None:
        index: int | None = self.start
        while index is not None:
            index = self._block(self.graph.blocks[index])

    def _block(self, block: Block) -> int | None:
        """Emit one block; the index of the block to go on with, or None when the function has returned."""
        self.instrs += len(block.instrs)
        body = block.instrs[:-1] if ends_flow(block.instrs[-1]) else block.instrs
        for instr in body:
            self._instr(instr, block)
            if self.w.lines and self.w.lines[-1].startswith("    return "):
                return None
        return self._end(block)

    def _instr(self, instr: Instr, block: Block) -> None:
        writer = self.w
        writer.instr, writer.site = instr, self.program.site(instr)
        writer.counted += 1
        emitter = find_opcode(instr)
        if instr.guard is None:
            self._tracked(instr, block, emitter)
        else:
            self._guarded(instr, block, emitter)

    def _tracked(self, instr: Instr, block: Block, emitter: Callable[..., None]) -> None:
        if self.program.covers:
            self.w.emit(f"w.machine.program.seen(w, {self.w.site}, {self.w.mask})")
        self.tracker.before(instr)
        emit_access(self.w, instr)
        tensor_loads.emit_use(self.w)
        shared_loads.emit_use(self.w)
        emitter(self.w, instr, block)
        self.tracker.after(instr)

    def _guarded(self, instr: Instr, block: Block, emitter: Callable[..., None]) -> None:
        writer = self.w
        assert instr.guard is not None
        repeatable = instr.tokens[0] == "griddepcontrol" or (
            instr.tokens[0] == "mbarrier" and instr.tokens[1] in POLLS
        )
        if starts_block(instr) and not block.spin and not repeatable:
            raise writer.fail("a guarded operation that may wait is not modelled")
        self.tracker.guard(instr.guard, "the guard")
        writer.touches(instr)
        guard = writer.predicate(instr.guard)
        if instr.negated:
            guard = f"({guard} ^ 4294967295)"
        if writer.varies(instr.guard):
            name = writer.temporary()
            writer.emit(f"{name} = {guard} & {writer.mask}")
            saved = writer.open_region(name, name)
        else:
            saved = writer.open_region(guard, None)
        self._tracked(instr, block, emitter)
        writer.close_region(saved, (1 << len(self.graph.kernel.registers)) - 1)

    # -- ends ----------------------------------------------------------------------------------------------------
    def _end(self, block: Block) -> int | None:
        writer, last = self.w, block.instrs[-1]
        if ends_flow(last):
            writer.counted += 1
            writer.instr, writer.site = last, self.program.site(last)
            self.tracker.guard(last.guard, "the predicate of the branch")
            if last.tokens[0] == "trap":
                self._trap(last)
            if last.guard is not None:
                return self._conditional(block)
            return self._go(block.taken if block.taken is not None else EXIT, block)
        return self._go(block.fall if block.fall is not None else EXIT, block)

    def _trap(self, last: Instr) -> None:
        """A guarded trap stops the kernel only if some lane's guard holds."""
        writer = self.w
        if last.guard is None:
            writer.emit("trap(w)")
            return
        guard = writer.predicate(last.guard)
        if not writer.varies(last.guard):
            condition = f"not {guard}" if last.negated else guard
        else:
            condition = f"{writer.mask} & ~{guard}" if last.negated else f"{guard} & {writer.mask}"
        writer.emit(f"if {condition}: trap(w)")

    def _go(self, target: int, block: Block) -> int | None:
        if self._continues(target, block):
            return target
        self.w.leave(str(target), self.graph.live_out(block))
        return None

    def _continues(self, target: int, block: Block) -> bool:
        if target == EXIT or target <= block.index or self.instrs > MAX_INSTRS:
            return False
        if self.w.converged is False and self._is_meeting(target):
            return False
        following = self.graph.blocks[target]
        first = following.instrs[0]
        return not starts_block(first) or (first.tokens[0] == "mbarrier" and not following.spin)

    def _is_meeting(self, target: int) -> bool:
        """In the partial version lanes may have to wait for others at a post-dominator: the scheduler must see it."""
        return target in self.program.graph.ipdom

    def _conditional(self, block: Block) -> int | None:
        last = block.instrs[-1]
        taken, fall = block.taken, block.fall
        assert last.guard is not None and taken is not None and fall is not None
        if self._inlines(fall, taken, block):
            self._inline(fall, taken, last.guard, want=last.negated)
            return self._go(taken, block)
        self.w.depth = 1
        guard = self.w.predicate(last.guard)
        if not self.w.varies(last.guard):
            return self._uniform_branch(block, guard, taken, fall)
        self._varying_branch(block, guard, last.negated, taken, fall)
        return None

    def _uniform_branch(self, block: Block, guard: str, taken: int, fall: int) -> int | None:
        writer, last = self.w, block.instrs[-1]
        assert last.guard is not None
        if self._taken_at_entry(last.guard, negated=last.negated):
            writer.leave(str(taken), self._live_at(taken))
            return None
        writer.emit(f"if not {guard}:" if last.negated else f"if {guard}:")
        writer.depth += 1
        writer.leave(str(taken), self._live_at(taken))
        writer.depth -= 1
        return self._go(fall, block)

    def _taken_at_entry(self, guard: Reg, *, negated: bool) -> bool:
        """Does the value that ``guard`` had at the entry, and still has, take the branch?"""
        if self.entry is None or guard.slot in self.w.dirty or bool(self.entry[guard.slot]) == negated:
            return False
        self.unexpected.append(f"R[{guard.slot}]" if negated else f"not R[{guard.slot}]")
        return True

    def _live_at(self, target: int) -> int:
        return self.graph.live_in[target] if target != EXIT else 0

    def _varying_branch(self, block: Block, guard: str, negated: bool, taken: int, fall: int) -> None:
        writer, meeting = self.w, self.graph.ipdom[block.index]
        if negated:
            taken, fall = fall, taken
        name = writer.temporary()
        writer.emit(f"{name} = {guard} & {writer.mask}")
        writer.count()
        writer.counted = 0
        writer.store(self.graph.live_out(block))
        writer.emit(f"if {name} == {writer.mask}: return {taken}")
        writer.emit(f"if not {name}: return {fall}")
        writer.emit(f"return w.split({name}, {taken}, {fall}, {meeting})")

    def _inlines(self, body: int, join: int, block: Block) -> bool:
        """Is ``body`` a single block that only this branch enters and that goes straight to ``join``?"""
        if body in (EXIT, join) or join == EXIT or self.program.predecessors[body] != 1:
            return False
        candidate = self.graph.blocks[body]
        if candidate.successors != [join] or len(candidate.instrs) > 60:
            return False
        return not any(starts_block(instr) or _waits(instr) for instr in candidate.instrs)

    def _inline(self, body: int, join: int, guard: Reg, *, want: bool) -> None:
        writer, candidate = self.w, self.graph.blocks[body]
        live = self.graph.live_in[join]
        instrs = [instr for instr in candidate.instrs if not ends_flow(instr)]
        writer.preload(instrs, live)
        text = writer.predicate(guard)
        counted = writer.counted
        if writer.varies(guard):
            name = writer.temporary()
            writer.emit(f"{name} = {text} & {writer.mask}" if want else f"{name} = ~{text} & {writer.mask}")
            saved = writer.open_region(name, name)
        else:
            saved = writer.open_region(text if want else f"not {text}", None)
        writer.counted = 0
        for instr in instrs:
            self._instr(instr, candidate)
        writer.count()
        writer.close_region(saved, live)
        writer.counted = counted


def _waits(instr: Instr) -> bool:
    return instr.tokens[0] in ("bar", "barrier", "nanosleep")


@functools.lru_cache(maxsize=64)
def translate(ptx: str, kernel_name: str | None = None) -> Program:
    """The translated kernel of a PTX module; kept, so that further launches cost nothing."""
    return Program(parse_ptx(ptx, kernel_name))


__all__ = ["AGAIN", "EXIT", "LATER", "SPLIT", "Program", "Unsupported", "translate"]
