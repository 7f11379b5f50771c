"""Mutations of mbarriers: parities, byte counts, arrival counts, waits."""

from __future__ import annotations

from kernel_space.operators.svdquant_gemm.mutations.base import DEADLOCK, ILLEGAL, PROTOCOL, RACE, mutation
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor

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


@mutation("The full barrier of a stage expects 16 bytes less than the loads bring.", "solo", PROTOCOL,
          barrier="ab_full[", cause="received 16 bytes more than it expects")  # fmt: skip
def expect_16_less(edit: PtxEditor) -> None:
    _expect(edit, "ab_full", -16)


@mutation("In a CTA pair, the leader expects the bytes of one CTA only.", "pair", PROTOCOL,
          barrier="ab_full[", cause="bytes more than it expects")  # fmt: skip
def expect_one_cta_of_the_pair(edit: PtxEditor) -> None:
    instr = edit.expects("ab_full")[0]
    edit.set_operand(instr, 2, edit.constant(instr, 2) // 2)


@mutation("The expected bytes of a stage leave out the scale factors of B.", "solo", PROTOCOL,
          barrier="ab_full[", cause="received 2048 bytes more than it expects")  # fmt: skip
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


@mutation("The epilogue reads an accumulator without waiting for its MMAs.", "solo", RACE, ILLEGAL)
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
