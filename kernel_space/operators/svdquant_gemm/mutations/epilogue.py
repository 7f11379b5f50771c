"""Mutations of the epilogue: accumulator stages, shared vectors, named barriers, split-K."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.operators.svdquant_gemm.mutations.base import (
    DEADLOCK,
    ILLEGAL,
    RACE,
    SURVIVES,
    WRONG,
    mutation,
)
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, operand_texts

EPILOGUE_BARRIER = 1
SPLIT_FLAG_REASON = (
    "The atomic add is itself acq_rel at GPU scope, and releases are cumulative over the bar.sync before it: the "
    "fences order nothing more."
)


def _syncs(edit: PtxEditor) -> list[Instr]:
    """Named barriers of the epilogue warps, in the order of the text."""
    return edit.find(r"bar\.sync", within=lambda instr: edit.constant(instr, 0) == EPILOGUE_BARRIER)


def _sync_before(edit: PtxEditor, anchor: Instr) -> Instr:
    return [sync for sync in _syncs(edit) if sync.line < anchor.line][-1]


def _sync_behind(edit: PtxEditor, anchor: Instr) -> Instr:
    return next(sync for sync in _syncs(edit) if sync.line > anchor.line)


def _store(edit: PtxEditor) -> Instr:
    return edit.find(r"cp\.async\.bulk\.tensor\.\dd\.global")[0]


# -- named barriers ----------------------------------------------------------------------------------------------------


@mutation("Warp 0 stores a subtile without waiting until all four warps have written it.", "solo", RACE)
def no_sync_before_store(edit: PtxEditor) -> None:
    edit.drop(_sync_before(edit, _store(edit)))


@mutation(
    "Warps write the next slot of C without waiting until warp 0 has seen its store read it.", "solo", RACE
)
def no_sync_after_store(edit: PtxEditor) -> None:
    edit.drop(_sync_behind(edit, _store(edit)))


@mutation("Warps read wcscale and bias before all threads have brought them to shared memory.", "solo", RACE)
def no_sync_after_affine(edit: PtxEditor) -> None:
    edit.drop(_sync_behind(edit, edit.find(r"st\.shared", "bias")[0]))


@mutation(
    "No barrier of the epilogue is left in the tile loop: wcscale and bias of the next tile overwrite this one's.",
    "solo",
    RACE,
    by=("slow_epilogue", "random"),
    cause="st.shared overwrites what epilogue",
)
def affine_overwritten_too_early(edit: PtxEditor) -> None:
    for sync in _syncs(edit)[:-1]:
        edit.drop(sync)


@mutation("The barrier at the end of a split-K tile is missing; every way to it crosses another one.", "split",
          SURVIVES, reason="Between a tile's last read of wcscale, bias or flag and their next write lies the barrier "
          "behind the last store, or for splits that do not store, the one before their partials.")  # fmt: skip
def no_sync_at_the_end_of_a_split(edit: PtxEditor) -> None:
    edit.drop(_sync_behind(edit, _sync_behind(edit, _store(edit))))


@mutation("The barrier of the epilogue before tcgen05.dealloc is missing.", "solo", SURVIVES,
          reason="The last subtile's barriers before and behind its store already stand between every warp's last "
          "tcgen05.ld and the deallocation by warp 0.")  # fmt: skip
def no_sync_before_dealloc(edit: PtxEditor) -> None:
    edit.drop(_sync_before(edit, edit.find(r"tcgen05\.dealloc")[0]))


@mutation("One barrier of the epilogue waits for 160 threads; only 128 ever come.", "solo", DEADLOCK,
          cause="of 160 threads never arrive at bar 1")  # fmt: skip
def sync_of_too_many_threads(edit: PtxEditor) -> None:
    edit.set_operand(_sync_before(edit, _store(edit)), 1, 160)


# -- accumulators ------------------------------------------------------------------------------------------------------


@mutation("The epilogue reads the other accumulator than the one that is full.", "solo", RACE)
def epilogue_reads_the_other_stage(edit: PtxEditor) -> None:
    load = edit.find(r"tcgen05\.ld")[0]
    base = edit.source(load, 1)
    columns = edit.context.config.mma_tiler_mn[1]
    stage = edit.source(base, 1) if base.tokens[0] == "add" else base
    shift = edit.source(stage, 2) if stage.tokens[0] == "add" else stage
    if shift.tokens[0] != "shl":
        raise NotApplicable("the epilogue of this kernel has no accumulator stages")
    parts = operand_texts(shift)
    edit.insert_after(shift, f"xor.b32 {parts[0]}, {parts[0]}, {columns};")


@mutation("All subtiles are read from the first columns of the accumulator.", "solo", WRONG)
def epilogue_reads_one_subtile(edit: PtxEditor) -> None:
    load = edit.find(r"tcgen05\.ld")[0]
    edit.set_operand(edit.source(load, 1), 2, 0)


@mutation(
    "An overlapped accumulator is released while its loads to registers are still under way.", "overlap", RACE
)
def no_load_wait(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"tcgen05\.wait::ld")[0])


@mutation(
    "The accumulator's columns behind the overlap are released with it, one subtile too early.",
    "overlap",
    RACE,
)
def overlap_drained_from_the_wrong_end(edit: PtxEditor) -> None:
    load = edit.find(r"tcgen05\.ld")[0]
    choose = edit.preceding(load, r"selp\.b32")
    parts = operand_texts(choose)
    edit.set_operand(choose, 1, parts[2])


@mutation("The bias of the column to the left is added.", "solo", WRONG)
def bias_of_another_column(edit: PtxEditor) -> None:
    for instr in edit.find(r"ld\.shared", "bias"):
        edit.add_to(instr, 1, -16)


# -- split-K -----------------------------------------------------------------------------------------------------------


def _atomic(edit: PtxEditor) -> Instr:
    return edit.find(r"atom\.global")[0]


@mutation(
    "The arrival counter of a tile is not reset: the next launch never sees its last split.", "split", WRONG
)
def split_counter_not_reset(edit: PtxEditor) -> None:
    edit.drop(edit.following(_atomic(edit), r"st\.global"))


@mutation("Every split writes its partial sums to the place of the first one.", "split", RACE)
def partials_of_one_split(edit: PtxEditor) -> None:
    store = edit.find(r"st\.global\.v4")[0]
    wide = edit.preceding(store, r"mul\.wide")
    edit.set_operand(edit.preceding(wide, r"add\.s32"), 2, 0)


@mutation(
    "The first split to arrive sums the partials, before the others have written theirs.", "split", RACE
)
def first_split_reduces(edit: PtxEditor) -> None:
    flag = edit.find(r"ld\.shared", "split-K flag")[0]
    edit.set_operand(edit.following(flag, r"setp\.ne"), 2, 0)


@mutation("A split counts itself in before all its warps have written their partials.", "split", RACE)
def no_sync_before_count(edit: PtxEditor) -> None:
    edit.drop(_sync_before(edit, _atomic(edit)))


@mutation(
    "Warps read the split-K flag before thread 0 has written it.",
    "split",
    ILLEGAL,
    cause="never written",
)
def no_sync_after_count(edit: PtxEditor) -> None:
    edit.drop(_sync_behind(edit, _atomic(edit)))


@mutation("The arrival counter is added to relaxed, and no fence orders the partials.", "split", RACE)
def split_count_relaxed(edit: PtxEditor) -> None:
    edit.set_opcode(_atomic(edit), "acq_rel", "relaxed")
    for fence in edit.find(r"fence\.acq_rel"):
        edit.drop(fence)


@mutation("The fences around the split-K atomic are missing.", "split", SURVIVES, reason=SPLIT_FLAG_REASON)
def no_split_fences(edit: PtxEditor) -> None:
    for fence in edit.find(r"fence\.acq_rel"):
        edit.drop(fence)


@mutation("The sum takes the first split's partials twice and leaves out the second one's.", "split", WRONG)
def partial_counted_twice(edit: PtxEditor) -> None:
    loads = edit.find(r"ld\.global\.v2\.b64")
    first = edit.find(r"ld\.global\.v4\.b32")[0]
    base = operand_texts(first)[1].strip("[]").split("+")[0]
    for number, load in enumerate(loads):
        edit.set_operand(load, 1, f"[{base}+{2048 * number}]")
