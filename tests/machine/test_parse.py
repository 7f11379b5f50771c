"""PTX text -> instructions; control-flow graph; uniform registers."""

from __future__ import annotations

import pytest

from kernel_space.machine.ptx.cfg import EXIT, build_graph
from kernel_space.machine.ptx.operands import Imm, Mem, Not, Reg, Symbol, Vec
from kernel_space.machine.ptx.parse import parse_ptx
from kernel_space.machine.ptx.uniformity import varying_registers
from kernel_space.machine.translate.translate import SharedLayout
from kernel_space.machine.values.faults import Unsupported
from tests.machine.ptx import program


def names(bits: int, kernel: object) -> set[str]:
    return {register.name for register in kernel.registers if bits >> register.slot & 1}  # type: ignore[attr-defined]


def test_operand_forms() -> None:
    kernel = parse_ptx(program("@!%p1 mad.lo.s32 %r1, %r2, -0x10, 7;\nld.global.v2.b32 {%r3, _}, [%d1+-8];"))
    first, second = kernel.instrs[:2]
    assert first.guard is not None and first.guard.name == "%p1" and first.negated
    assert first.opcode == "mad.lo.s32" and first.operands[2:] == (Imm(-16), Imm(7))
    target, source = second.operands
    assert isinstance(target, Vec) and target.items[1] == Symbol("_")
    assert isinstance(source, Mem) and source.offset == -8


def test_components_of_a_vector_register() -> None:
    """``.x .y .z .w`` are ``.r .g .b .a``, and the name alone stands for all of them, in its scope."""
    block = "{\n.reg .v4 .b32 v;\nmov.b32 v.w, v.b;\nst.global.v4.b32 [%d1], v;\n}\n"
    move, store, other, _ = parse_ptx(program(block + block)).instrs[:4]
    vector = store.operands[1]
    assert isinstance(vector, Vec) and len({item.slot for item in vector.items if isinstance(item, Reg)}) == 4
    assert move.operands == (vector.items[3], vector.items[2]) and other.operands[0] not in vector.items
    for bad in (".reg .v4 .b32 v<4>;", ".reg .v2 .pred v;\n@v mov.b32 %r1, 0;"):
        with pytest.raises(Unsupported):
            parse_ptx(program(bad))


def test_float_literals_are_bits() -> None:
    kernel = parse_ptx(program("mov.f32 %r1, 0f3F800000;"))
    assert kernel.instrs[0].operands[1] == Imm(0x3F800000)


def test_lines_and_comments() -> None:
    text = program("// one\nadd.u32 %r1, %r2,\n  %r3; /* two\nlines */ sub.u32 %r4, %r1, 1;")
    first, second = parse_ptx(text).instrs[:2]
    assert text.split("\n")[first.line - 1].startswith("add.u32")
    assert "sub.u32" in text.split("\n")[second.line - 1] and second.opcode == "sub.u32"


def test_scoped_labels_and_registers_are_renamed() -> None:
    block = "{\n.reg .pred P;\nL:\nsetp.eq.u32 P, %r1, 0;\n@P bra DONE;\nbra L;\nDONE:\n}\n"
    kernel = parse_ptx(program(block + block))
    predicates = [instr.operands[0] for instr in kernel.instrs if instr.opcode == "setp.eq.u32"]
    assert all(isinstance(item, Reg) for item in predicates) and predicates[0] != predicates[1]
    targets = [instr.operands[0].name for instr in kernel.instrs if instr.opcode == "bra"]  # type: ignore[union-attr]
    assert len(set(targets)) == 4


def test_unknown_label_names_the_line() -> None:
    with pytest.raises(Unsupported, match="unknown label NOWHERE"):
        parse_ptx(program("bra NOWHERE;"))


def test_parameters_and_shared_layout() -> None:
    """Static shared memory starts at 0x400, the dynamic part follows, aligned as declared (measured on Hopper)."""
    text = program(
        "mov.u32 %r1, smem;", ".param .align 64 .b8 map[128], .param .u32 n, .param .u64 .ptr .global p"
    )
    text = text.replace(".visible", ".shared .align 8 .b8 fixed[8];\n.visible")
    kernel = parse_ptx(text)
    assert [(item.size, item.align) for item in kernel.params] == [(128, 64), (4, 4), (8, 8)]
    layout = SharedLayout(kernel)
    assert layout.offsets["fixed"] == 0x400 and layout.dynamic == 0x800


def test_blocks_and_post_dominators() -> None:
    """0: branch; 1: then; 2: else; 3: join."""
    graph = build_graph(
        parse_ptx(program("@%p1 bra B;\nmov.u32 %r1, 1;\nbra J;\nB:\nmov.u32 %r1, 2;\nJ:\nmov.u32 %r2, %r1;"))
    )
    assert [block.successors for block in graph.blocks] == [[2, 1], [3], [3], [EXIT]]
    assert graph.ipdom == [3, 3, 3, EXIT]


def test_liveness_of_a_loop_counter() -> None:
    kernel = parse_ptx(
        program("mov.u32 %r1, 0;\nL:\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9;\n@%p1 bra L;")
    )
    graph = build_graph(kernel)
    assert names(graph.live_in[1], kernel) == {"%r1"}
    assert names(graph.live_in[0], kernel) == set()


@pytest.mark.parametrize(
    "loop",
    [
        "L:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n@%p1 bra D;\nbra L;\nD:",
        "L:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n@!%p1 bra L;",
        "L:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\nselp.u32 %r3, 1, 0, %p1;\n"
        "setp.eq.u32 %p2, %r3, 0;\n@%p2 bra L;",
    ],
)
def test_spin_waits_are_recognised(loop: str) -> None:
    assert [block.spin for block in build_graph(parse_ptx(program(loop))).blocks].count(True) == 1


def test_a_look_at_a_barrier_is_no_spin_wait() -> None:
    look = "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n@%p1 bra D;\nst.shared.u32 [%r1+8], %r1;\nD:"
    assert not any(block.spin for block in build_graph(parse_ptx(program(look))).blocks)


def test_uniform_and_varying_registers() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    add.u32 %r3, %r2, 5;
    add.u32 %r4, %r3, %r1;
    shfl.sync.idx.b32 %r5, %r4, 0, 31, -1;
    setp.eq.u32 %p1, %r2, 0;
    setp.eq.u32 %p2, %r1, 0;
    """
    kernel = parse_ptx(program(body))
    assert names(varying_registers(build_graph(kernel)), kernel) == {"%r1", "%r4", "%p2"}


def test_uniform_value_assigned_under_divergence_varies_behind_it() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra J;
    mov.u32 %r2, 1;
    mov.u32 %r4, 2;
    add.u32 %r4, %r4, 1;
    J:
    add.u32 %r5, %r2, %r3;
    """
    kernel = parse_ptx(program(body))
    assert names(varying_registers(build_graph(kernel)), kernel) == {"%r1", "%r2", "%r5", "%p1"}


def test_not_and_pair_operands() -> None:
    kernel = parse_ptx(program("setp.eq.and.u32 %p1|%p2, %r1, %r2, !%p3;"))
    assert isinstance(kernel.instrs[0].operands[3], Not)


def test_a_register_of_a_scope_hides_the_one_outside_from_its_declaration_on() -> None:
    body = "mov.u32 %r1, %r9;\n{\nmov.u32 %r2, %r9;\n.reg .b32 %r9;\nmov.u32 %r9, 5;\n}\nmov.u32 %r3, %r9;"
    first, before, inside, behind = parse_ptx(program(body)).instrs[:4]
    outer = first.operands[1]
    assert before.operands[1] == outer and behind.operands[1] == outer and inside.operands[0] != outer


@pytest.mark.parametrize(
    ("text", "written", "read", "sources"),
    [
        ("add.u32 %r1, %r2, %r1;", "%r1", "%r2 %r1", "%r2 %r1"),
        ("@%p1 mov.u32 %r1, 5;", "%r1", "%p1 %r1", "%p1"),  # where %p1 is false, %r1 stays
        ("st.shared.u32 [%r1], %r2;", "", "%r1 %r2", "%r1 %r2"),
        ("elect.sync %r1|%p1, -1;", "%r1 %p1", "", ""),
        ("ld.shared.v2.b32 {%r1, %r2}, [%r3+8];", "%r1 %r2", "%r3", "%r3"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r1, %r2}];", "", "%d1 %r1 %r2", "%d1 %r1 %r2"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2}, %d1, %d2, 1;", "%r1 %r2",
         "%d1 %d2 %r1 %r2", "%d1 %d2"),  # it adds to what is there
    ],
)  # fmt: skip
def test_registers_that_an_instruction_writes_and_reads(
    text: str, written: str, read: str, sources: str
) -> None:
    kernel = parse_ptx(program(text))
    instr = kernel.instrs[0]
    assert [register.name for register in instr.definitions] == written.split()
    assert [register.name for register in instr.uses] == read.split()
    assert names(instr.written_bits, kernel) == set(written.split())
    assert names(instr.read_bits, kernel) == set(read.split())
    assert names(instr.source_bits, kernel) == set(sources.split())
