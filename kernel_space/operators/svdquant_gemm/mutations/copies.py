"""Mutations of copies: TMA loads, their multicast, fences of proxies, bulk stores."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Mem
from kernel_space.operators.svdquant_gemm.mutations.base import (
    DEADLOCK,
    ILLEGAL,
    PROTOCOL,
    RACE,
    WRONG,
    mutation,
)
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, head, operand_texts

STORE = r"cp\.async\.bulk\.tensor\.\dd\.global"
OWN_BIT = (
    "{{ .reg .b32 rank; mov.u32 rank, %cluster_ctarank; shl.b32 rank, 1, rank; cvt.u16.u32 {new}, rank; }}"
)
MASK = 3  # operand of a multicast load


def _multicast(edit: PtxEditor, region: str) -> Instr:
    load = edit.loads(region)[0]
    if "multicast::cluster" not in load.opcode:
        raise NotApplicable(f"{region} is not multicast in this kernel: it has no sharers")
    return load


# -- multicast ---------------------------------------------------------------------------------------------------------


@mutation("In a CTA pair, each CTA keeps its half of B's scale factors to itself.", "pair", DEADLOCK,
          barrier="ab_full[0] of CTA 0", cause="bytes more than arrived")  # fmt: skip
def sfb_mask_without_peer(edit: PtxEditor) -> None:
    edit.compute(_multicast(edit, "SFB"), MASK, OWN_BIT, "b16")


@mutation("In a cluster, the slice of A that a CTA loads reaches only itself.", "cluster", DEADLOCK,
          barrier="ab_full[0] of CTA", cause="bytes more than arrived")  # fmt: skip
def a_mask_without_sharers(edit: PtxEditor) -> None:
    edit.compute(_multicast(edit, "A"), MASK, OWN_BIT, "b16")


@mutation(
    "In a cluster, the slice of B that a CTA loads goes to all CTAs, not only to its sharers.",
    "cluster",
    PROTOCOL,
    barrier="ab_full[",
    cause="bytes more than it expects",
)
def b_mask_of_all_ctas(edit: PtxEditor) -> None:
    size = edit.context.config.cluster_size
    edit.compute(_multicast(edit, "B"), MASK, f"mov.b16 {{new}}, {(1 << size) - 1};", "b16")


@mutation("In a cluster with sharers, B is loaded without multicast: a CTA has only its own slice.", "cluster",
          DEADLOCK, barrier="ab_full[0] of CTA", cause="bytes more than arrived")  # fmt: skip
def b_without_multicast(edit: PtxEditor) -> None:
    load = _multicast(edit, "B")
    parts = operand_texts(load)
    del parts[MASK]
    opcode = head(load).replace(".multicast::cluster", "")
    edit.replace(load, f"{opcode} {', '.join(parts)}")


@mutation("In a CTA pair, the loads of A signal the barrier of their own CTA, not the leader's.", "pair", DEADLOCK,
          barrier="ab_full[0] of CTA 0", cause="bytes more than arrived")  # fmt: skip
def barrier_without_leader_bits(edit: PtxEditor) -> None:
    clear = edit.source(edit.loads("A")[0], 2)
    if clear.tokens[0] != "and":
        raise NotApplicable("the barrier's address is not sent to the leader: no CTA pair")
    edit.set_operand(clear, 2, -8)


# -- destinations and coordinates of loads -----------------------------------------------------------------------------


@mutation("The loads of A go to the slot behind the one that was waited for.", "solo", RACE)
def load_into_the_next_slot(edit: PtxEditor) -> None:
    edit.add_to(edit.loads("A")[0], 0, edit.context.region("A").each)


@mutation("B's scale factors are loaded over those of A of the next slots.", "solo", RACE)
def sfb_loaded_over_sfa(edit: PtxEditor) -> None:
    sfa, sfb = edit.context.region("SFA"), edit.context.region("SFB")
    edit.add_to(edit.loads("SFB")[0], 0, sfa.offset - sfb.offset)


@mutation("B is loaded from one column of K tiles further than A.", "solo", WRONG)
def b_from_another_k(edit: PtxEditor) -> None:
    load = edit.loads("B")[0]
    parts = operand_texts(load)
    k = parts[1].split("{")[1].split(",")[0]
    parts[1] = parts[1].replace(k, "moved", 1)
    step = edit.context.config.mma_tiler_k
    edit.replace(load, f"{{ .reg .b32 moved; add.s32 moved, {k}, {step}; {head(load)} {', '.join(parts)}; }}")


@mutation(
    "B's coordinate in K is not a multiple of 16 bytes.", "solo", ILLEGAL, cause="is not aligned to 16 bytes"
)
def b_coordinate_misaligned(edit: PtxEditor) -> None:
    load = edit.loads("B")[0]
    parts = operand_texts(load)
    k = parts[1].split("{")[1].split(",")[0]
    parts[1] = parts[1].replace(k, "moved", 1)
    edit.replace(load, f"{{ .reg .b32 moved; add.s32 moved, {k}, 4; {head(load)} {', '.join(parts)}; }}")


# -- fences ------------------------------------------------------------------------------------------------------------


@mutation(
    "No fence.proxy.async lies between the epilogue's writes and the TMA store; the numbers may stay right.",
    "solo",
    RACE,
    cause="no fence.proxy.async lies between them",
)
def no_proxy_fence(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"fence\.proxy\.async")[0])


@mutation("No fence makes the initialised barriers visible before the relaxed cluster arrive.", "pair", RACE,
          cause="before its initialisation is visible")  # fmt: skip
def no_init_fence(edit: PtxEditor) -> None:
    for instr in edit.find(r"fence\.mbarrier_init"):
        edit.drop(instr)


# -- bulk stores -------------------------------------------------------------------------------------------------------


def _store(edit: PtxEditor) -> Instr:
    return edit.find(STORE)[0]


@mutation("A slot of C is written again without waiting for the store that reads it.", "solo", RACE)
def no_store_wait(edit: PtxEditor) -> None:
    edit.drop(edit.following(_store(edit), r"cp\.async\.bulk\.wait_group"))


@mutation("The wait for bulk stores leaves one group too many pending.", "solo", RACE)
def store_wait_too_lax(edit: PtxEditor) -> None:
    wait = edit.following(_store(edit), r"cp\.async\.bulk\.wait_group")
    edit.set_operand(wait, 0, edit.constant(wait, 0) + 1)


@mutation("Bulk stores are never committed to a group, so no wait covers them.", "solo", RACE)
def no_store_commit(edit: PtxEditor) -> None:
    edit.drop(edit.following(_store(edit), r"cp\.async\.bulk\.commit_group"))


@mutation(
    "A CTA ends while bulk stores still read its shared memory.",
    "solo",
    RACE,
    cause="no cp.async.bulk.wait_group covers it",
)
def no_final_store_wait(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"cp\.async\.bulk\.wait_group")[-1])


@mutation("Every subtile of the output is stored twice.", "solo", RACE, cause="global memory")
def output_stored_twice(edit: PtxEditor) -> None:
    store = _store(edit)
    edit.insert_before(store, f"{store.text};")


def _move_store(edit: PtxEditor, axis: int, amount: int) -> None:
    store = _store(edit)
    parts = operand_texts(store)
    coords = parts[0].split("{")[1].split("}")[0].split(",")
    old = coords[axis].strip()
    coords[axis] = " moved" if axis else "moved"
    parts[0] = f"{parts[0].split('{')[0]}{{{','.join(coords)}}}]"
    edit.replace(
        store, f"{{ .reg .b32 moved; add.s32 moved, {old}, {amount}; {head(store)} {', '.join(parts)}; }}"
    )
    edit.replaced[store.line] = edit.replaced[store.line].rstrip(";")


@mutation("Subtiles are stored half as far apart as they are wide: each overlaps the next one.", "solo", RACE,
          cause="global memory")  # fmt: skip
def stores_overlap(edit: PtxEditor) -> None:
    store = _store(edit)
    target = store.operands[0]
    assert isinstance(target, Mem) and target.coords is not None, "a store of a box names its coordinates"
    column = edit.definition(target.coords[0], store)
    assert column is not None, "the coordinate is computed before the store"
    edit.compute(column, 2, f"shr.u32 {{new}}, {operand_texts(column)[2]}, 1;")


@mutation("The output is stored one tile too far down: the first rows are never written.", "solo", WRONG)
def store_one_tile_down(edit: PtxEditor) -> None:
    _move_store(edit, 1, edit.context.config.cta_tile_mnk[0])


@mutation(
    "Every tile is stored to the first rows: two tiles write one place.", "solo", RACE, cause="global memory"
)
def store_to_the_first_rows(edit: PtxEditor) -> None:
    store = _store(edit)
    parts = operand_texts(store)
    row = parts[0].split("{")[1].split("}")[0].split(",")[1]
    parts[0] = parts[0].replace(row, " 0")
    edit.replace(store, f"{head(store)} {', '.join(parts)}")


@mutation("The store reads the other slot of C than the one just written.", "solo", RACE)
def store_reads_the_other_slot(edit: PtxEditor) -> None:
    store = _store(edit)
    if int(edit.context.config.num_c_stage) < 2:
        raise NotApplicable("C has one slot in this kernel")
    slot = edit.context.region("C").each
    address = operand_texts(store)[1][1:-1]
    base, offset = address.split("+")
    flip = f"sub.s32 {{new}}, {base}, %other; add.s32 {{new}}, {{new}}, {offset};"
    edit.compute(store, 1, flip.replace("%other", str(slot)))
