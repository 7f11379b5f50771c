"""Mutations of rings and commits: wrap-around, accumulator hand-over, commits, elected arrivals."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.operators.svdquant_gemm.mutations.base import DEADLOCK, ILLEGAL, PROTOCOL, RACE, mutation
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, operand_texts

# -- stage rings -------------------------------------------------------------------------------------------------------


def _ring_step(edit: PtxEditor, anchor: Instr) -> tuple[Instr, Instr]:
    """(comparison with the number of slots, flip of the parity) behind the use of a ring."""
    compare = edit.following(anchor, r"setp\.eq\.b32")
    return compare, edit.following(compare, r"xor\.b32")


@mutation(
    "The MMA warp wraps around one slot before the end of the A/B ring.",
    "solo",
    DEADLOCK,
    barrier="ab_empty[2]",
    cause="nobody ever arrives on ab_empty[2]",
)
def consumer_wraps_early(edit: PtxEditor) -> None:
    compare, _ = _ring_step(edit, edit.commits("ab_empty")[0])
    edit.set_operand(compare, 2, edit.constant(compare, 2) - 1)


@mutation(
    "The TMA warp wraps around one slot behind the end of the A/B ring.",
    "solo",
    DEADLOCK,
    ILLEGAL,
    barrier="ab_full[0]",
    cause="no arrival on ab_full[0]",
)
def producer_wraps_late(edit: PtxEditor) -> None:
    compare, _ = _ring_step(edit, edit.loads("SFB")[0])
    edit.set_operand(compare, 2, edit.constant(compare, 2) + 1)


@mutation(
    "The MMA warp does not flip its parity when the A/B ring wraps around.",
    "solo",
    DEADLOCK,
    barrier="ab_empty[",
    cause="no arrival on ab_empty[",
)
def consumer_keeps_parity(edit: PtxEditor) -> None:
    edit.drop(_ring_step(edit, edit.commits("ab_empty")[0])[1])


@mutation("The TMA warp does not flip its parity when the A/B ring wraps around.", "solo", RACE, PROTOCOL)
def producer_keeps_parity(edit: PtxEditor) -> None:
    edit.drop(_ring_step(edit, edit.loads("SFB")[0])[1])


@mutation(
    "The epilogue wraps around after the first accumulator of two.",
    "solo",
    DEADLOCK,
    barrier="acc_full[0]",
    cause="nobody ever arrives on acc_empty[1]",
)
def epilogue_wraps_early(edit: PtxEditor) -> None:
    compare, _ = _ring_step(edit, edit.arrivals("acc_empty")[0])
    edit.set_operand(compare, 2, edit.constant(compare, 2) - 1)


@mutation(
    "A stage's loads of A signal the full barrier of the next stage.",
    "solo",
    DEADLOCK,
    barrier="ab_full[0]",
    cause="ab_full[0] expects 16384 bytes more than arrived",
)
def load_signals_the_next_stage(edit: PtxEditor) -> None:
    edit.add_to(edit.loads("A")[0], 2, 8)


# -- accumulator hand-over ---------------------------------------------------------------------------------------------


@mutation("The epilogue never releases an accumulator.", "solo", DEADLOCK,
          barrier="acc_empty[0]", cause="nobody ever arrives on acc_empty[0]")  # fmt: skip
def no_accumulator_release(edit: PtxEditor) -> None:
    edit.drop(edit.arrivals("acc_empty")[0])


@mutation("The epilogue releases an accumulator before it has read it.", "solo", RACE)
def accumulator_released_too_early(edit: PtxEditor) -> None:
    arrive = edit.arrivals("acc_empty")[0]
    wait = edit.waits("acc_full")[0]
    edit.drop(arrive)
    base = operand_texts(edit.source(wait, 1))
    distance = _first_offset(edit, "acc_empty") - _first_offset(edit, "acc_full")
    release = f"{{ .reg .b64 token; mbarrier.arrive.shared.b64 token, [{base[0]}+{distance}], 1; }}"
    edit.insert_behind_wait(wait, release)


def _first_offset(edit: PtxEditor, barrier: str) -> int:
    return edit.context.region(barrier).offset


# -- commits -----------------------------------------------------------------------------------------------------------


def _multicast_commit(edit: PtxEditor, barrier: str) -> Instr:
    commit = edit.commits(barrier)[0]
    if "multicast::cluster" not in commit.opcode:
        raise NotApplicable(f"commits on {barrier} reach one CTA only: nobody shares")
    return commit


@mutation("The commit that says an accumulator is full reaches only the leader of the pair.", "pair", DEADLOCK,
          barrier="acc_full[0] of CTA 1", cause="nobody ever arrives on acc_full[0] of CTA 1")  # fmt: skip
def acc_commit_without_peer(edit: PtxEditor) -> None:
    edit.compute(_multicast_commit(edit, "acc_full"), 1, "mov.b16 {new}, 1;", "b16")


@mutation("The commit that frees a stage does not reach the peer CTA, which also loads.", "pair", DEADLOCK,
          barrier="ab_empty[0] of CTA 1", cause="nobody ever arrives on ab_empty[0] of CTA 1")  # fmt: skip
def ab_commit_without_peer(edit: PtxEditor) -> None:
    edit.compute(_multicast_commit(edit, "ab_empty"), 1, "mov.b16 {new}, 1;", "b16")


@mutation("In a cluster, a commit that frees a stage reaches only the CTA that issues it.", "cluster", DEADLOCK,
          barrier="ab_empty[0] of CTA", cause="has 1 of 3 arrivals")  # fmt: skip
def ab_commit_without_sharers(edit: PtxEditor) -> None:
    own = (
        "{ .reg .b32 rank; mov.u32 rank, %cluster_ctarank; shl.b32 rank, 1, rank; cvt.u16.u32 {new}, rank; }"
    )
    edit.compute(
        _multicast_commit(edit, "ab_empty"), 1, own.replace("{ .", "{{ .").replace("; }", "; }}"), "b16"
    )


@mutation(
    "The commit that should free a stage arrives on its full barrier.",
    "solo",
    DEADLOCK,
    barrier="ab_empty[0]",
    cause="nobody ever arrives on ab_empty[0]",
)
def ab_commit_on_the_full_barrier(edit: PtxEditor) -> None:
    distance = _first_offset(edit, "ab_full") - _first_offset(edit, "ab_empty")
    edit.add_to(edit.commits("ab_empty")[0], 0, distance)


@mutation("The commit that says an accumulator is full arrives on its empty barrier.", "solo", DEADLOCK,
          barrier="acc_full[0]", cause="nobody ever arrives on acc_full[0]")  # fmt: skip
def acc_commit_on_the_empty_barrier(edit: PtxEditor) -> None:
    distance = _first_offset(edit, "acc_empty") - _first_offset(edit, "acc_full")
    edit.add_to(edit.commits("acc_full")[0], 0, distance)


@mutation(
    "The epilogue waits for the accumulator behind its own: right until the last of an odd number of tiles.",
    "solo",
    DEADLOCK,
    barrier="acc_full[1]",
    cause="no arrival on acc_full[1] in phase",
)
def epilogue_waits_for_the_next_stage(edit: PtxEditor) -> None:
    if len(edit.inits("acc_full")) < 2:
        raise NotApplicable("there is one accumulator: acc_full[1] is missing")
    edit.add_to(edit.waits("acc_full")[0], 1, 8)


@mutation(
    "The commit that frees a stage arrives on the barrier of the next stage.",
    "solo",
    DEADLOCK,
    barrier="ab_empty[0]",
    cause="nobody ever arrives on ab_empty[0]",
)
def ab_commit_on_the_next_stage(edit: PtxEditor) -> None:
    edit.add_to(edit.commits("ab_empty")[0], 0, 8)


@mutation(
    "The MMA warp frees a stage by an arrive of its own, not by a commit: MMAs may still read it.",
    "solo",
    RACE,
)
def stage_freed_without_commit(edit: PtxEditor) -> None:
    commit = edit.commits("ab_empty")[0]
    edit.replace(commit, f"mbarrier.arrive.shared.b64 _, {operand_texts(commit)[0]}, 1")


@mutation("Nobody commits the MMAs of a stage: it is never free again.", "solo", DEADLOCK,
          barrier="ab_empty[0]", cause="nobody ever arrives on ab_empty[0]")  # fmt: skip
def no_ab_commit(edit: PtxEditor) -> None:
    edit.drop(edit.commits("ab_empty")[0])


@mutation("A number of expected bytes is announced by all 32 lanes.", "solo", PROTOCOL)
def expect_by_all_lanes(edit: PtxEditor) -> None:
    without_elect(edit, edit.expects("ab_full")[0])


def without_elect(edit: PtxEditor, instr: Instr) -> None:
    """Remove the branch that lets only the elected lane through."""
    branch = edit.preceding(instr, "bra")
    if branch.guard is None:
        raise NotApplicable(f"no elected lane before {instr.text!r}")
    edit.drop(branch)


@mutation(
    "The commit that frees a stage is issued by all 32 lanes.",
    "solo",
    DEADLOCK,
    barrier="ab_empty[",
    cause="in phase 32",
)
def commit_by_all_lanes(edit: PtxEditor) -> None:
    without_elect(edit, edit.commits("ab_empty")[0])


@mutation(
    "The TMA load of A is issued by all 32 lanes: 32 times the bytes arrive.",
    "solo",
    PROTOCOL,
    barrier="ab_full[",
    cause="bytes more than it expects",
)
def load_by_all_lanes(edit: PtxEditor) -> None:
    without_elect(edit, edit.loads("A")[0])
