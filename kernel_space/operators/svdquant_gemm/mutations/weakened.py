"""Mutations of strength and place: synchronisation that is there, but too weak, too early, or of another lane."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.operators.svdquant_gemm.mutations.base import PROTOCOL, RACE, mutation
from kernel_space.operators.svdquant_gemm.mutations.rings import without_elect
from kernel_space.operators.svdquant_gemm.mutations.text import PtxEditor, operand_texts

ALIGNED = "needs the whole warp together"
UNFENCED = "no fence.proxy.async lies between them"
_IF_LANE = (
    "{{ .reg .pred mine; .reg .b32 mutant; mov.u32 mutant, %laneid; setp.{how}.u32 mine, mutant, {lane}; "
    "@mine {text}; }}"
)


def _by_lane(edit: PtxEditor, instr: Instr, lane: int, how: str = "eq") -> None:
    """An instruction is that of the lanes whose number compares so."""
    edit.drop(instr)
    edit.insert_after(instr, _text_by_lane(instr, lane, how))


def _text_by_lane(instr: Instr, lane: int, how: str = "eq") -> str:
    return _IF_LANE.format(how=how, lane=lane, text=instr.text.rstrip("; "))


def _move_before(edit: PtxEditor, instr: Instr, anchor: Instr) -> None:
    edit.drop(instr)
    edit.insert_before(anchor, f"{instr.text.rstrip('; ')};")


def _move_behind(edit: PtxEditor, instr: Instr, anchor: Instr) -> None:
    edit.drop(instr)
    edit.insert_after(anchor, f"{instr.text.rstrip('; ')};")


def _fence(edit: PtxEditor) -> Instr:
    return edit.find(r"fence\.proxy\.async")[0]


def _store(edit: PtxEditor) -> Instr:
    return edit.find(r"cp\.async\.bulk\.tensor\.\dd\.global")[0]


def _last_mma(edit: PtxEditor) -> Instr:
    """Of a stage of the A/B ring."""
    return edit.preceding(edit.commits("ab_empty")[0], r"tcgen05\.mma")


# -- weakened ----------------------------------------------------------------------------------------------------------


@mutation(
    "The fence between the epilogue's writes and the TMA store is for global memory.",
    "solo",
    RACE,
    cause=UNFENCED,
)
def fence_of_global_only(edit: PtxEditor) -> None:
    edit.set_opcode(_fence(edit), ".shared::cta", ".global")


@mutation("The arrival counter of a tile is added to at CTA scope.", "split", RACE, cause="on global memory")
def split_count_of_the_cta(edit: PtxEditor) -> None:
    edit.set_opcode(edit.find(r"atom\.global")[0], ".acq_rel", ".acq_rel.cta")


@mutation(
    "The arrival counter of a tile is added to at cluster scope.", "split", RACE, cause="on global memory"
)
def split_count_of_the_cluster(edit: PtxEditor) -> None:
    edit.set_opcode(edit.find(r"atom\.global")[0], ".acq_rel", ".acq_rel.cluster")


@mutation("The arrival counter is relaxed, and the fences around it are of CTA scope.", "split", RACE,
          cause="on global memory")  # fmt: skip
def split_fences_of_the_cta(edit: PtxEditor) -> None:
    edit.set_opcode(edit.find(r"atom\.global")[0], ".acq_rel", ".relaxed")
    for fence in edit.find(r"fence\.acq_rel\.gpu"):
        edit.set_opcode(fence, ".gpu", ".cta")


@mutation("The arrival counter is read, added to and stored again by volatile accesses.", "split", RACE)
def split_count_by_load_and_store(edit: PtxEditor) -> None:
    atom = edit.find(r"atom\.global")[0]
    old, where = atom.text.split()[1].rstrip(","), atom.text[atom.text.index("[") : atom.text.index("]") + 1]
    edit.replace(
        atom,
        f"{{ .reg .b32 mutant; ld.volatile.global.u32 {old}, {where}; add.u32 mutant, {old}, 1; "
        f"st.volatile.global.u32 {where}, mutant; }}",
    )


def _weaken_release(edit: PtxEditor, how: str) -> None:
    """Of the epilogue's arrivals on the barriers of the pair's leader."""
    found = edit.find(r"mbarrier\.arrive\.shared::cluster", "acc_empty")[0]
    edit.set_opcode(found, "mbarrier.arrive", f"mbarrier.arrive.{how}")


@mutation(
    "In a CTA pair, the epilogue hands an accumulator back by relaxed arrivals.",
    "pair",
    RACE,
    cause="on TMEM",
)
def accumulator_released_relaxed(edit: PtxEditor) -> None:
    _weaken_release(edit, "relaxed.cluster")


@mutation(
    "In a CTA pair, the epilogue hands an accumulator back at CTA scope.", "pair", RACE, cause="on TMEM"
)
def accumulator_released_to_the_cta(edit: PtxEditor) -> None:
    _weaken_release(edit, "release.cta")


@mutation(
    "Scale factors are copied to two of the four quarters of the lanes.",
    "solo",
    PROTOCOL,
    cause="others in lanes",
)
def sfa_to_half_of_the_lanes(edit: PtxEditor) -> None:
    edit.set_opcode(edit.find(r"tcgen05\.cp")[0], "32x128b.warpx4", "64x128b.warpx2::02_13")


# -- misplaced ---------------------------------------------------------------------------------------------------------


@mutation(
    "The proxy fence comes before the epilogue's writes to shared memory.", "solo", RACE, cause=UNFENCED
)
def fence_before_the_writes(edit: PtxEditor) -> None:
    fence = _fence(edit)
    _move_before(edit, fence, edit.preceding(fence, r"tcgen05\.ld"))


@mutation("The last write of the epilogue and the proxy fence behind it have changed places.", "solo", RACE,
          cause=UNFENCED)  # fmt: skip
def last_write_behind_the_fence(edit: PtxEditor) -> None:
    fence = _fence(edit)
    _move_behind(edit, edit.preceding(fence, r"st\.shared|stmatrix"), fence)


@mutation("The bulk group is closed before the store that belongs to it.", "solo", RACE)
def store_committed_too_early(edit: PtxEditor) -> None:
    store = _store(edit)
    _move_before(edit, edit.following(store, r"cp\.async\.bulk\.commit_group"), store)


@mutation("The wait for earlier stores comes before the next one, not behind it.", "solo", RACE)
def store_waited_too_early(edit: PtxEditor) -> None:
    store = _store(edit)
    _move_before(edit, edit.following(store, r"cp\.async\.bulk\.wait_group"), store)


@mutation("A stage is committed before its last MMA.", "solo", RACE)
def stage_committed_too_early(edit: PtxEditor) -> None:
    commit = edit.commits("ab_empty")[0]
    edit.drop(commit)
    edit.insert_before(edit.preceding(_last_mma(edit), r"elect\.sync"), _text_by_lane(commit, 0))


@mutation("The fence of the initialised barriers comes behind the cluster arrive.", "pair", RACE,
          cause="before its initialisation is visible")  # fmt: skip
def init_fence_behind_the_arrival(edit: PtxEditor) -> None:
    fences = edit.find(r"fence\.mbarrier_init")
    for fence in fences[:-1]:
        edit.drop(fence)
    _move_behind(edit, fences[-1], edit.find(r"barrier\.cluster\.arrive")[0])


# -- of another lane ---------------------------------------------------------------------------------------------------


@mutation("One lane of each warp fences, for what all 32 have written.", "solo", RACE, cause=UNFENCED)
def fence_by_one_lane(edit: PtxEditor) -> None:
    _by_lane(edit, _fence(edit), 0)


@mutation("Lane 1 alone waits for bulk groups.", "solo", RACE)
def store_wait_by_another_lane(edit: PtxEditor) -> None:
    _by_lane(edit, edit.following(_store(edit), r"cp\.async\.bulk\.wait_group"), 1)


@mutation("Lane 1 alone closes the bulk group.", "solo", RACE)
def store_commit_by_another_lane(edit: PtxEditor) -> None:
    _by_lane(edit, edit.following(_store(edit), r"cp\.async\.bulk\.commit_group"), 1)


@mutation("Lane 7 commits what lane 0 has issued.", "solo", RACE)
def stage_committed_by_another_lane(edit: PtxEditor) -> None:
    commit = edit.commits("ab_empty")[0]
    without_elect(edit, commit)
    _by_lane(edit, commit, 7)


@mutation("The last MMA of a stage is that of lane 5; lane 0 commits the stage.", "solo", RACE)
def mma_by_another_lane(edit: PtxEditor) -> None:
    mma = _last_mma(edit)
    without_elect(edit, mma)
    _by_lane(edit, mma, 5)


@mutation("Half of a warp allocates tensor memory.", "solo", PROTOCOL, cause=ALIGNED)
def alloc_by_half_a_warp(edit: PtxEditor) -> None:
    _by_lane(edit, edit.find(r"tcgen05\.alloc")[0], 16, "lt")


@mutation("Half of a warp loads an accumulator.", "solo", PROTOCOL, cause=ALIGNED)
def accumulator_loaded_by_half_a_warp(edit: PtxEditor) -> None:
    _by_lane(edit, edit.find(r"tcgen05\.ld")[0], 16, "lt")


@mutation("One lane frees tensor memory.", "solo", PROTOCOL, cause=ALIGNED)
def dealloc_by_one_lane(edit: PtxEditor) -> None:
    _by_lane(edit, edit.find(r"tcgen05\.dealloc")[0], 0)


@mutation("One lane of each warp comes to the barrier before the store.", "solo", PROTOCOL, cause=ALIGNED)
def sync_of_one_lane(edit: PtxEditor) -> None:
    _by_lane(edit, edit.following(_fence(edit), r"bar\.sync"), 0)


# -- another value or mask ---------------------------------------------------------------------------------------------


@mutation(
    "A lane is elected among the lower 16.",
    "solo",
    PROTOCOL,
    cause="which its member mask 0xffff does not name",
)
def elected_among_half_a_warp(edit: PtxEditor) -> None:
    edit.set_operand(edit.preceding(edit.commits("ab_empty")[0], r"elect\.sync"), 1, "0xffff")


@mutation(
    "An instruction descriptor has a reserved bit set.", "solo", PROTOCOL, cause="reserved bits 3 must be 0"
)
def reserved_bit_of_the_instruction(edit: PtxEditor) -> None:
    edit.compute(_last_mma(edit), 3, f"or.b32 {{new}}, {_descriptor(edit)}, 8;")


def _descriptor(edit: PtxEditor) -> str:
    return operand_texts(_last_mma(edit))[3]


@mutation("An MMA takes A from the collector buffer, which nobody has filled.", "solo", PROTOCOL,
          cause="nothing is in the collector buffer")  # fmt: skip
def collector_never_filled(edit: PtxEditor) -> None:
    edit.set_opcode(_last_mma(edit), "collector::a::discard", "collector::a::use")


@mutation(
    "Tensor memory is freed for a pair of CTAs, but allocated for one.",
    "solo",
    PROTOCOL,
    cause="all must name one",
)
def dealloc_for_a_pair(edit: PtxEditor) -> None:
    edit.set_opcode(edit.find(r"tcgen05\.dealloc")[0], "cta_group::1", "cta_group::2")
