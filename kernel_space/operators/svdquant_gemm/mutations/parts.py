"""Mutations of a part: of one slot, warp, CTA or cluster only, or of a barrier that happens to be free."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.operators.svdquant_gemm.mutations.base import (
    DEADLOCK,
    ILLEGAL,
    PROTOCOL,
    RACE,
    SURVIVES,
    mutation,
)
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, operand_texts
from kernel_space.operators.svdquant_gemm.mutations.weakened import UNFENCED

TMA_WARP, EPILOGUE_THREADS = 5, 128
_IF = (
    "{{ .reg .pred mine; .reg .b32 mutant; mov.u32 mutant, %{what}; {shift}setp.{how}.u32 mine, mutant, {limit}; "
    "@mine {text}; }}"
)


def _only(edit: PtxEditor, instr: Instr, what: str, how: str, limit: int) -> None:
    """The instruction is that of threads whose special register, or warp, compares so."""
    edit.drop(instr)
    shift, special = ("shr.u32 mutant, mutant, 5; ", "tid.x") if what == "warp" else ("", what)
    text = instr.text.rstrip("; ")
    edit.insert_after(instr, _IF.format(what=special, shift=shift, how=how, limit=limit, text=text))


def _multicast(instr: Instr) -> Instr:
    if "multicast" not in instr.opcode:
        raise NotApplicable(f"{instr.opcode} is not multicast in this kernel; choose a larger cluster")
    return instr


def _wait(edit: PtxEditor, barrier: str, number: int = 0) -> Instr:
    return edit.waits(barrier)[number]


def _slot_of(edit: PtxEditor, wait: Instr) -> str:
    """The register with the slot: the address is start + 8 * slot + constant."""
    seen = wait
    for _ in range(4):
        seen = edit.source(seen, 1)
        if seen.tokens[0] == "shl":
            return operand_texts(seen)[1]
        sources = [operand for operand in seen.operands[1:] if edit.definition(operand, seen)]
        found = [edit.definition(operand, seen) for operand in sources]
        shifts = [one for one in found if one is not None and one.tokens[0] == "shl"]
        if shifts:
            return operand_texts(shifts[0])[1]
    raise NotApplicable(f"cannot find the slot of {wait.text!r}")


@mutation("The TMA warp waits for the wrong parity in slot 1 alone.", "solo", DEADLOCK,
          barrier="ab_empty[1]", cause="nobody ever arrives")  # fmt: skip
def parity_of_one_slot(edit: PtxEditor) -> None:
    wait = _wait(edit, "ab_empty")
    slot, parity = _slot_of(edit, wait), operand_texts(wait)[2]
    test = f"{{{{ .reg .pred one; setp.eq.u32 one, {slot}, 1; selp.b32 {{new}}, 1, 0, one; }}}}"
    edit.compute(wait, 2, f"{test} xor.b32 {{new}}, {{new}}, {parity};")


@mutation("The MMA warp waits until the other one of two accumulators is free.", "cluster", RACE,
          cause="has seen that the one before it did")  # fmt: skip
def mma_waits_for_the_other_accumulator(edit: PtxEditor) -> None:
    wait = _wait(edit, "acc_empty")
    base = operand_texts(wait)[1][1:-1]
    edit.compute(wait, 1, f"xor.b32 {{new}}, {base}, 8;")


@mutation("A stage of slot 1 alone expects 16 bytes less than the loads bring.", "solo", PROTOCOL)
def expect_16_less_in_one_slot(edit: PtxEditor) -> None:
    expect = edit.expects("ab_full")[0]
    slot = _slot_of(edit, _wait(edit, "ab_empty"))
    test = f"{{{{ .reg .pred one; setp.eq.u32 one, {slot}, 1; selp.b32 {{new}}, 16, 0, one; }}}}"
    edit.compute(expect, 2, f"{test} sub.s32 {{new}}, {operand_texts(expect)[2]}, {{new}};")


@mutation("In a cluster, a commit that frees a stage also reaches the CTA that shares nothing.", "cluster", RACE,
          DEADLOCK, PROTOCOL)  # fmt: skip
def ab_commit_to_all_ctas(edit: PtxEditor) -> None:
    edit.compute(_multicast(edit.commits("ab_empty")[0]), 1, "mov.b16 {new}, 15;", "b16")


@mutation("In a cluster, a slice of A goes to the CTAs that share B.", "cluster", RACE)
def a_mask_of_the_other_sharers(edit: PtxEditor) -> None:
    a, b = _multicast(edit.loads("A")[0]), _multicast(edit.loads("B")[0])
    edit.set_operand(a, 3, operand_texts(b)[3])


def _mapped(edit: PtxEditor, barrier: str) -> Instr:
    """The mapa that finds the CTA of a remote arrival."""
    return edit.source(edit.find(r"mbarrier\.arrive\.shared::cluster", barrier)[0], 1)


@mutation("In a CTA pair, the epilogue hands an accumulator back to its own CTA.", "pair", DEADLOCK,
          barrier="acc_empty[0]", cause="128 of 256 arrivals")  # fmt: skip
def accumulator_released_to_the_own_cta(edit: PtxEditor) -> None:
    edit.compute(_mapped(edit, "acc_empty"), 2, "mov.u32 {new}, %cluster_ctarank;")


@mutation("In a CTA pair, the hand-shake before tcgen05.dealloc is of a CTA with itself.", "pair", RACE,
          cause="deallocation race")  # fmt: skip
def dealloc_shakes_its_own_hand(edit: PtxEditor) -> None:
    edit.compute(_mapped(edit, "tmem_dealloc"), 2, "mov.u32 {new}, %cluster_ctarank;")


@mutation("The fence of the initialised barriers is that of a warp that initialised none.", "pair", RACE,
          cause="before its initialisation is visible")  # fmt: skip
def init_fence_by_another_warp(edit: PtxEditor) -> None:
    for fence in edit.find(r"fence\.mbarrier_init"):
        _only(edit, fence, "warp", "eq", 1)


@mutation("The TMA warp alone does not wait for the cluster.", "pair", RACE, ILLEGAL,
          cause="before its initialisation is visible")  # fmt: skip
def no_cluster_wait_of_the_tma_warp(edit: PtxEditor) -> None:
    _only(edit, edit.find(r"barrier\.cluster\.wait")[0], "warp", "ne", TMA_WARP)


@mutation("The epilogue does not wait for the cluster.", "pair", SURVIVES, reason="Its first barrier with the MMA "
          "warp, which has waited, orders it behind the initialisation of every CTA.")  # fmt: skip
def no_cluster_wait_of_the_epilogue(edit: PtxEditor) -> None:
    _only(edit, edit.find(r"barrier\.cluster\.wait")[0], "tid.x", "ge", EPILOGUE_THREADS)


@mutation("Only the first cluster of the grid waits for the launch before.", "early", RACE,
          cause="no griddepcontrol.wait orders the two")  # fmt: skip
def launch_wait_of_the_first_cluster(edit: PtxEditor) -> None:
    _only(edit, edit.find(r"griddepcontrol\.wait")[0], "ctaid.z", "eq", 0)


@mutation("The arrival counter of a tile acquires only, and the fence before it is missing.", "split", RACE,
          cause="on global memory")  # fmt: skip
def split_count_without_release(edit: PtxEditor) -> None:
    atom = edit.find(r"atom\.global")[0]
    edit.drop(edit.preceding(atom, r"fence\.acq_rel\.gpu"))
    edit.set_opcode(atom, ".acq_rel", ".acquire")


@mutation("The arrival counter is relaxed, and the fence stands before the barrier, not behind it.", "split", RACE,
          cause="on global memory")  # fmt: skip
def split_fence_before_the_barrier(edit: PtxEditor) -> None:
    atom = edit.find(r"atom\.global")[0]
    fence = edit.preceding(atom, r"fence\.acq_rel\.gpu")
    edit.drop(fence)
    edit.insert_before(edit.preceding(fence, r"bar\.sync"), f"{fence.text.rstrip('; ')};")
    edit.set_opcode(atom, ".acq_rel", ".relaxed")


@mutation("The loads of an accumulator are waited for behind its release.", "pair", RACE, cause="on TMEM")
def load_wait_behind_the_release(edit: PtxEditor) -> None:
    wait = edit.find(r"tcgen05\.wait::ld")[0]
    edit.drop(wait)
    edit.insert_after(edit.following(wait, r"mbarrier\.arrive"), f"{wait.text.rstrip('; ')};")


@mutation("Warp 2 alone does not fence what it has written for the TMA store.", "solo", RACE, cause=UNFENCED)
def no_proxy_fence_of_one_warp(edit: PtxEditor) -> None:
    _only(edit, edit.find(r"fence\.proxy\.async")[0], "warp", "ne", 2)


@mutation("The warp that stores fences behind the barrier, the others not at all.", "solo", SURVIVES,
          reason="A proxy fence anywhere on the way from the writes to the copy orders them; the barrier has brought "
          "the other warps' writes by then.")  # fmt: skip
def proxy_fence_of_the_storing_warp(edit: PtxEditor) -> None:
    fence = edit.find(r"fence\.proxy\.async")[0]
    edit.drop(fence)
    edit.insert_after(edit.following(fence, "bra"), f"{fence.text.rstrip('; ')};")


@mutation("The MMA warp takes one k-tile more than there are.", "solo", DEADLOCK, barrier="ab_full",
          cause="no arrival on")  # fmt: skip
def one_k_tile_too_many(edit: PtxEditor) -> None:
    compare = edit.following(edit.commits("ab_empty")[0], r"setp\.lt")
    edit.set_opcode(compare, "setp.lt", "setp.le")


@mutation("One barrier of the epilogue is of 64 threads.", "solo", PROTOCOL, cause="64 threads")
def sync_of_too_few_threads(edit: PtxEditor) -> None:
    fence = edit.find(r"fence\.proxy\.async")[0]
    edit.set_operand(edit.following(fence, r"bar\.sync"), 1, 64)
