"""Mutations of mbarriers: parities, byte counts, arrival counts, waits, stage rings."""

from __future__ import annotations

from kernel_space.sim.mutate_base import DEADLOCK, ILLEGAL, PROTOCOL, RACE, mutation
from kernel_space.sim.mutate_text import NotApplicable, PtxEditor, operand_texts
from kernel_space.sim.parse import Instr

# -- initial parities --------------------------------------------------------------------------------------------------


@mutation("The TMA warp starts with parity 0: it waits for slots that nobody has filled yet.", "solo", DEADLOCK,
          barrier="ab_empty[0]", cause="nobody ever arrives on ab_empty[0]")  # fmt: skip
def ab_producer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("ab_empty")[0])


@mutation(
    "The MMA warp starts with parity 1: the first round over the ring does not wait for data.",
    "solo",
    DEADLOCK,
    RACE,
    barrier="ab_full[0]",
    cause="asks for the wrong parity",
)
def ab_consumer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("ab_full")[0])


@mutation("The TMA warp starts its LoRA ring with parity 0.", "solo", DEADLOCK,
          barrier="lora_empty[0]", cause="nobody ever arrives on lora_empty[0]")  # fmt: skip
def lora_producer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("lora_empty")[0])


@mutation(
    "The MMA warp starts its LoRA ring with parity 1: the first slices are used before they land.",
    "solo",
    DEADLOCK,
    barrier="lora_full[0]",
    cause="asks for the wrong parity",
)
def lora_consumer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("lora_full")[0])


@mutation("The MMA warp starts with parity 0: it waits for accumulators that were never full.", "solo", DEADLOCK,
          barrier="acc_empty[0]", cause="nobody ever arrives on acc_empty[0]")  # fmt: skip
def acc_producer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("acc_empty")[0])


@mutation(
    "The epilogue starts with parity 1: it reads accumulators before the MMAs are done.",
    "solo",
    RACE,
    DEADLOCK,
)
def acc_consumer_parity(edit: PtxEditor) -> None:
    edit.flip_at_start(edit.waits("acc_full")[0])


@mutation(
    "Before tcgen05.dealloc, the wait for the peer asks for parity 1, which is true at once.",
    "pair",
    DEADLOCK,
    barrier="tmem_dealloc[0] of CTA",
    cause="asks for the wrong parity",
)
def dealloc_parity(edit: PtxEditor) -> None:
    edit.set_operand(edit.waits("tmem_dealloc")[0], 2, 1)


# -- expected bytes ----------------------------------------------------------------------------------------------------


def _expect(edit: PtxEditor, barrier: str, change: int, number: int = 0) -> None:
    instr = edit.expects(barrier)[number]
    edit.set_operand(instr, 2, edit.constant(instr, 2) + change)


@mutation("The full barrier of a stage expects 16 bytes more than the loads bring.", "solo", DEADLOCK,
          barrier="ab_full[0]", cause="ab_full[0] expects 16 bytes more than arrived")  # fmt: skip
def expect_16_more(edit: PtxEditor) -> None:
    _expect(edit, "ab_full", 16)


@mutation("The full barrier of a stage expects 16 bytes less than the loads bring.", "solo", DEADLOCK,
          barrier="ab_full[0]", cause="ab_full[0] received 16 bytes more than it expects")  # fmt: skip
def expect_16_less(edit: PtxEditor) -> None:
    _expect(edit, "ab_full", -16)


@mutation("In a CTA pair, the leader expects the bytes of one CTA only.", "pair", DEADLOCK,
          barrier="ab_full[", cause="bytes more than it expects")  # fmt: skip
def expect_one_cta_of_the_pair(edit: PtxEditor) -> None:
    instr = edit.expects("ab_full")[0]
    edit.set_operand(instr, 2, edit.constant(instr, 2) // 2)


@mutation("The expected bytes of a stage leave out the scale factors of B.", "solo", DEADLOCK,
          barrier="ab_full[0]", cause="bytes more than it expects")  # fmt: skip
def expect_forgets_sfb(edit: PtxEditor) -> None:
    _expect(edit, "ab_full", -edit.context.region("SFB").each)


@mutation(
    "A LoRA slice rides in an A/B slot, but its barrier expects the bytes of a full stage.",
    "ride",
    DEADLOCK,
    barrier="ab_full[2]",
    cause="ab_full[2] expects 4096 bytes more than arrived",
)
def ride_expects_a_full_stage(edit: PtxEditor) -> None:
    expects = edit.expects("ab_full")
    if len(expects) != 2:
        raise NotApplicable("only kernels with lora_buffer=ab_stage have two expected byte counts")
    stage = max(edit.constant(instr, 2) for instr in expects)
    edit.set_operand(min(expects, key=lambda instr: edit.constant(instr, 2)), 2, stage)


@mutation("The full barrier of a LoRA slice expects 16 bytes more than the loads bring.", "solo", DEADLOCK,
          barrier="lora_full[0]", cause="lora_full[0] expects 16 bytes more than arrived")  # fmt: skip
def lora_expect_16_more(edit: PtxEditor) -> None:
    _expect(edit, "lora_full", 16)


# -- arrival counts ----------------------------------------------------------------------------------------------------


def _count(edit: PtxEditor, barrier: str, new: int) -> None:
    for instr in edit.inits(barrier):
        edit.set_operand(instr, 1, new)


def _old_count(edit: PtxEditor, barrier: str) -> int:
    return edit.constant(edit.inits(barrier)[0], 1)


@mutation("The empty barriers of the A/B ring wait for one commit too many.", "solo", DEADLOCK,
          barrier="ab_empty[0]", cause="ab_empty[0] has 1 of 2 arrivals")  # fmt: skip
def ab_empty_count_plus_one(edit: PtxEditor) -> None:
    _count(edit, "ab_empty", _old_count(edit, "ab_empty") + 1)


@mutation("The full barriers of the accumulators wait for one commit too many.", "solo", DEADLOCK,
          barrier="acc_full[0]", cause="acc_full[0] has 1 of 2 arrivals")  # fmt: skip
def acc_full_count_plus_one(edit: PtxEditor) -> None:
    _count(edit, "acc_full", _old_count(edit, "acc_full") + 1)


@mutation("The empty barriers of the accumulators wait for one thread too many.", "solo", DEADLOCK,
          barrier="acc_empty[0]", cause="acc_empty[0] has 128 of 129 arrivals")  # fmt: skip
def acc_empty_count_plus_one(edit: PtxEditor) -> None:
    _count(edit, "acc_empty", _old_count(edit, "acc_empty") + 1)


@mutation(
    "In a CTA pair, the empty barriers of the accumulators count the threads of one CTA only.",
    "pair",
    DEADLOCK,
    RACE,
    barrier="acc_empty[",
    cause="asks for the wrong parity",
)
def acc_empty_count_half(edit: PtxEditor) -> None:
    _count(edit, "acc_empty", _old_count(edit, "acc_empty") // 2)


@mutation("The full barriers of the LoRA ring wait for two producers.", "solo", DEADLOCK,
          barrier="lora_full[0]", cause="lora_full[0] has 1 of 2 arrivals")  # fmt: skip
def lora_full_count_plus_one(edit: PtxEditor) -> None:
    _count(edit, "lora_full", _old_count(edit, "lora_full") + 1)


@mutation(
    "In a cluster, the empty barriers of the A/B ring forget one sharer: slots are free too early.",
    "cluster",
    RACE,
)
def ab_empty_count_minus_one(edit: PtxEditor) -> None:
    old = _old_count(edit, "ab_empty")
    if old < 2:
        raise NotApplicable("ab_empty counts one commit: this kernel shares no operand between CTAs")
    _count(edit, "ab_empty", old - 1)


@mutation("The barrier of the dealloc hand-shake counts half of the peer's threads.", "pair", PROTOCOL)
def dealloc_count_half(edit: PtxEditor) -> None:
    _count(edit, "tmem_dealloc", _old_count(edit, "tmem_dealloc") // 2)


# -- dropped waits -----------------------------------------------------------------------------------------------------


@mutation("The MMA warp does not wait for the data of a stage.", "solo", RACE)
def no_ab_full_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("ab_full")[0])


@mutation("The TMA warp does not wait until a stage is free.", "solo", RACE, PROTOCOL)
def no_ab_empty_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("ab_empty")[0])


@mutation("LoRA MMAs are issued without waiting for their operands.", "solo", RACE)
def no_lora_full_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("lora_full")[0])


@mutation("The TMA warp does not wait until a LoRA slot is free.", "solo", RACE)
def no_lora_empty_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("lora_empty")[0])


@mutation("The MMA warp overwrites an accumulator without waiting for the epilogue.", "solo", RACE, DEADLOCK)
def no_acc_empty_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("acc_empty")[0])


@mutation("The epilogue reads an accumulator without waiting for its MMAs.", "solo", RACE)
def no_acc_full_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("acc_full")[0])


@mutation(
    "TMEM is deallocated before the hand-shake with the peer CTA.",
    "pair",
    RACE,
    cause="tcgen05.dealloc touches",
)
def no_dealloc_wait(edit: PtxEditor) -> None:
    edit.drop_wait(edit.waits("tmem_dealloc")[0])


@mutation(
    "Warps go on before the cluster knows that its barriers are initialised.",
    "pair",
    RACE,
    ILLEGAL,
    cause="before its initialisation is visible",
)
def no_cluster_wait(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"barrier\.cluster\.wait")[0])


@mutation(
    "A CTA ends while commits of its peers are still to arrive on its barriers.",
    "cluster",
    RACE,
    cause="may end before",
)
def no_producer_tail(edit: PtxEditor) -> None:
    for barrier in ("ab_empty", "lora_empty"):
        for wait in edit.waits(barrier)[1:]:
            edit.drop_wait(wait)


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


@mutation("The commit that says an accumulator is full reaches only the leader of the pair.", "pair", DEADLOCK,
          barrier="acc_full[0] of CTA 1", cause="nobody ever arrives on acc_full[0] of CTA 1")  # fmt: skip
def acc_commit_without_peer(edit: PtxEditor) -> None:
    edit.compute(edit.commits("acc_full")[0], 1, "mov.b16 {new}, 1;", "b16")


@mutation("The commit that frees a stage does not reach the peer CTA, which also loads.", "pair", DEADLOCK,
          barrier="ab_empty[0] of CTA 1", cause="nobody ever arrives on ab_empty[0] of CTA 1")  # fmt: skip
def ab_commit_without_peer(edit: PtxEditor) -> None:
    edit.compute(edit.commits("ab_empty")[0], 1, "mov.b16 {new}, 1;", "b16")


@mutation("In a cluster, a commit that frees a stage reaches only the CTA that issues it.", "cluster", DEADLOCK,
          barrier="ab_empty[0] of CTA", cause="has 1 of 3 arrivals")  # fmt: skip
def ab_commit_without_sharers(edit: PtxEditor) -> None:
    own = (
        "{ .reg .b32 rank; mov.u32 rank, %cluster_ctarank; shl.b32 rank, 1, rank; cvt.u16.u32 {new}, rank; }"
    )
    edit.compute(edit.commits("ab_empty")[0], 1, own.replace("{ .", "{{ .").replace("; }", "; }}"), "b16")


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
    DEADLOCK,
    barrier="ab_full[0]",
    cause="received 507904 bytes more than it expects",
)
def load_by_all_lanes(edit: PtxEditor) -> None:
    without_elect(edit, edit.loads("A")[0])
