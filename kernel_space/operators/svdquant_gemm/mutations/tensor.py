"""Mutations of tensor instructions: descriptors, TMEM columns, accumulation, allocation, elected lanes."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Vec
from kernel_space.operators.svdquant_gemm.mutations.base import (
    DEADLOCK,
    ILLEGAL,
    PROTOCOL,
    RACE,
    SURVIVES,
    WRONG,
    mutation,
)
from kernel_space.operators.svdquant_gemm.mutations.rings import without_elect
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, operand_texts

NVFP4 = r"tcgen05\.mma\..*mxf4nvf4"
LORA = r"tcgen05\.mma\..*kind::f16"
D, A, B, SFA, SFB = 0, 1, 2, 4, 5  # operands of a block-scaled MMA
K_STEP = 2  # of a descriptor from one k-block to the next: 32 bytes


def _nvfp4(edit: PtxEditor, block: int) -> Instr:
    return edit.find(NVFP4, least=block + 1)[block]


def _shift_descriptor(edit: PtxEditor, instr: Instr, operand: int, amount: int) -> None:
    low = edit.source(instr, operand)  # mov.b64 desc, {low, high}
    if not low.opcode.startswith("mov.b64") or not isinstance(low.operands[1], Vec):
        raise NotApplicable("this kernel's descriptors are not put together per stage")
    text = operand_texts(low)
    inner = text[1].strip("{}").split(",")
    name = f"{{ .reg .b32 moved; add.s32 moved, {inner[0]}, {amount}; mov.b64 {text[0]}, {{moved,{inner[1]}}}; }}"
    edit.replaced[low.line] = f"\t{name}"


# -- descriptors -------------------------------------------------------------------------------------------------------


@mutation("The third k-block of a stage multiplies A of the second one again.", "solo", WRONG)
def a_block_twice(edit: PtxEditor) -> None:
    _shift_descriptor(edit, _nvfp4(edit, 2), A, -K_STEP)


@mutation("The last k-block of a stage reads B behind the end of its row of 128 bytes.", "solo", RACE)
def b_block_too_far(edit: PtxEditor) -> None:
    blocks = edit.find(NVFP4)
    _shift_descriptor(edit, blocks[-1], B, K_STEP)


@mutation("The second LoRA MMA multiplies the first 16 columns of lora_up again.", "solo", WRONG)
def lora_block_twice(edit: PtxEditor) -> None:
    _shift_descriptor(edit, edit.find(LORA, least=2)[1], B, -K_STEP)


@mutation("MMAs of A read the slot behind the one that was waited for.", "solo", RACE)
def mma_reads_the_next_slot(edit: PtxEditor) -> None:
    _shift_descriptor(edit, _nvfp4(edit, 0), A, edit.context.region("A").each >> 4)


@mutation("Scale factors of A's second k-block are copied from the first one.", "solo", WRONG)
def sfa_copied_twice(edit: PtxEditor) -> None:
    _shift_descriptor(edit, edit.find(r"tcgen05\.cp")[1], 1, -32)


@mutation("The second k-block is scaled with the first one's scale factors of A.", "solo", WRONG)
def sfa_of_another_block(edit: PtxEditor) -> None:
    first, second = _nvfp4(edit, 0), _nvfp4(edit, 1)
    edit.set_operand(second, SFA, operand_texts(first)[SFA])


# -- TMEM columns ------------------------------------------------------------------------------------------------------


@mutation("The second accumulator of the MMA warp begins in the middle of the first one.", "solo", RACE)
def acc_stage_stride_half(edit: PtxEditor) -> None:
    shift = edit.source(edit.source(_nvfp4(edit, 0), D), 1)
    if shift.tokens[0] != "shl":
        raise NotApplicable("this kernel has one accumulator, or overlapped ones")
    edit.set_operand(shift, 2, edit.constant(shift, 2) - 1)


@mutation("MMA warp and epilogue agree on accumulators that overlap by half.", "solo", RACE)
def accumulators_overlap(edit: PtxEditor) -> None:
    acc_stage_stride_half(edit)
    load = edit.find(r"tcgen05\.ld")[0]
    stage = edit.source(edit.source(load, 1), 1)
    shift = edit.source(stage, 2)
    edit.set_operand(shift, 2, edit.constant(shift, 2) - 1)


@mutation("Scale factors of A are copied to the columns of the second accumulator.", "solo", RACE)
def sfa_on_the_accumulator(edit: PtxEditor) -> None:
    columns = edit.context.config.mma_tiler_mn[1]
    for instr in edit.find(r"tcgen05\.cp")[:4]:
        edit.add_to(instr, 0, -columns)
    for instr in edit.find(NVFP4):
        _move_tmem(edit, instr, SFA, -columns)


def _move_tmem(edit: PtxEditor, instr: Instr, operand: int, amount: int) -> None:
    parts = operand_texts(instr)
    name = parts[operand].strip("[]")
    parts[operand] = "[moved]"
    body = f"add.s32 moved, {name}, {amount}; {instr.opcode} {', '.join(parts)};"
    edit.replaced[instr.line] = f"\t{{ .reg .b32 moved; {body} }}"


@mutation("Scale factors of B are copied over those of A.", "solo", WRONG)
def sfb_on_sfa(edit: PtxEditor) -> None:
    copies = edit.find(r"tcgen05\.cp")
    half = len(copies) // 2
    for sfa, sfb in zip(copies[:half], copies[half:], strict=True):
        edit.set_operand(sfb, 0, operand_texts(sfa)[0])
    for instr in edit.find(NVFP4):
        edit.set_operand(instr, SFB, operand_texts(instr)[SFA])


def _no_sfb_shift(edit: PtxEditor) -> None:
    address = edit.source(_nvfp4(edit, 0), SFB)  # add shift, base
    shift = edit.source(address, 1)
    if shift.tokens[0] != "shl":
        raise NotApplicable("tiles of this N all begin at a 128-row atom of scale factors")
    edit.set_operand(address, 1, 0)


@mutation("At N = 64, odd tiles read the first half of their 128-row atom of scale factors.", "solo", WRONG)
def no_sfb_shift_at_64(edit: PtxEditor) -> None:
    _no_sfb_shift(edit)


@mutation("At N = 192, odd tiles read scale factors from the start of their atom.", "wide", WRONG)
def no_sfb_shift_at_192(edit: PtxEditor) -> None:
    _no_sfb_shift(edit)


# -- accumulation ------------------------------------------------------------------------------------------------------


def _first_flag(edit: PtxEditor) -> list[Instr]:
    """The two assignments of the accumulate flag: cleared before the K loop, set in it."""
    flag = edit.definitions(_nvfp4(edit, 0).operands[6])
    if len(flag) != 2:
        raise NotApplicable("the first k-block has no accumulate flag of its own")
    return flag


@mutation(
    "The first MMA of a tile adds to what the previous tile left in the accumulator.",
    "solo",
    ILLEGAL,
    cause="never written",
)
def accumulates_over_the_tile_boundary(edit: PtxEditor) -> None:
    edit.set_operand(_first_flag(edit)[0], 1, -1)


@mutation("The first k-block of every stage overwrites the accumulator.", "solo", WRONG)
def first_block_overwrites(edit: PtxEditor) -> None:
    edit.drop(_first_flag(edit)[1])


def _overwrite(edit: PtxEditor, instr: Instr, operand: int) -> None:
    edit.set_operand(edit.source(instr, operand), 1, 0)


@mutation("The second k-block of every stage overwrites the accumulator.", "solo", WRONG)
def second_block_overwrites(edit: PtxEditor) -> None:
    _overwrite(edit, _nvfp4(edit, 1), 6)


@mutation("The first LoRA MMA of a slice overwrites the NVFP4 sums.", "solo", WRONG)
def lora_overwrites(edit: PtxEditor) -> None:
    _overwrite(edit, edit.find(LORA)[0], -1)


@mutation("LoRA MMAs are issued before the wait for their operands.", "solo", RACE)
def lora_issued_before_its_wait(edit: PtxEditor) -> None:
    wait = edit.waits("lora_full")[0]
    last = edit.find(LORA)[-1]
    name, parity = operand_texts(wait)[1:3]
    edit.drop_wait(wait)
    again = f"{{ .reg .pred done; AGAIN: {wait.opcode} done, {name}, {parity}; @done bra.uni GO; bra.uni AGAIN; GO: }}"
    commit = edit.commits("lora_empty")[0]
    edit.insert_before(edit.preceding(edit.preceding(commit, "bra"), "elect"), again)
    assert last.line < commit.line


@mutation("An MMA is issued by all 32 lanes.", "solo", WRONG)
def mma_by_all_lanes(edit: PtxEditor) -> None:
    without_elect(edit, _nvfp4(edit, 1))


# -- allocation --------------------------------------------------------------------------------------------------------


def _dealloc(edit: PtxEditor) -> Instr:
    return edit.find(r"tcgen05\.dealloc")[0]


@mutation(
    "Half of the needed TMEM columns is allocated.", "solo", ILLEGAL, cause="not all of them are allocated"
)
def half_the_columns(edit: PtxEditor) -> None:
    for instr in (edit.find(r"tcgen05\.alloc")[0], _dealloc(edit)):
        edit.set_operand(instr, 1, edit.constant(instr, 1) // 2)


@mutation("Fewer TMEM columns are freed than were allocated.", "solo", PROTOCOL)
def dealloc_of_half(edit: PtxEditor) -> None:
    edit.set_operand(_dealloc(edit), 1, edit.constant(_dealloc(edit), 1) // 2)


@mutation("TMEM is never deallocated.", "solo", PROTOCOL, cause="still allocated")
def no_dealloc(edit: PtxEditor) -> None:
    edit.drop(_dealloc(edit))


@mutation(
    "TMEM is deallocated before the last tile was read.",
    "solo",
    ILLEGAL,
    cause="not all of them are allocated",
)
def dealloc_before_the_tiles(edit: PtxEditor) -> None:
    dealloc = _dealloc(edit)
    load = edit.definition(dealloc.operands[0], dealloc)
    assert load is not None
    group = "cta_group::2" if "cta_group::2" in dealloc.opcode else "cta_group::1"
    columns = edit.constant(dealloc, 1)
    address = operand_texts(dealloc)[0]
    text = (
        f"{{ .reg .pred other; .reg .b32 warp; mov.u32 warp, %tid.x; setp.ge.u32 other, warp, 32; @other bra SKIP; "
        f"tcgen05.dealloc.{group}.sync.aligned.b32 {address}, {columns}; SKIP: }}"
    )
    edit.drop(dealloc)
    edit.insert_after(load, text)


@mutation("The right to allocate is not given back; no other CTA wants it on this SM.", "solo", SURVIVES,
          reason="One CTA per SM: nobody else waits for the permit, so nothing observable changes.")  # fmt: skip
def no_relinquish(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"tcgen05\.relinquish")[0])


@mutation(
    "The MMA warp reads the TMEM address without waiting for the allocation.",
    "solo",
    DEADLOCK,
    ILLEGAL,
    barrier="bar 2",
    cause="of 160 threads never arrive at bar 2",
)
def no_tmem_pointer_barrier(edit: PtxEditor) -> None:
    edit.drop(_pointer_barriers(edit)[0])


@mutation("Nobody waits for the allocation before the TMEM address is read.", "solo", RACE)
def no_tmem_pointer_barriers(edit: PtxEditor) -> None:
    for instr in _pointer_barriers(edit):
        edit.drop(instr)


def _pointer_barriers(edit: PtxEditor) -> list[Instr]:
    return edit.find(r"bar\.sync", within=lambda instr: edit.constant(instr, 0) == 2)
