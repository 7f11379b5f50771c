"""What kind of defect each mutation is: not what breaks, but what its author got wrong."""

from __future__ import annotations

_NAMES = {
    "removed": """
        no_ab_full_wait no_ab_empty_wait no_lora_full_wait no_lora_empty_wait no_acc_empty_wait no_acc_full_wait
        no_dealloc_wait no_cluster_wait no_producer_tail no_proxy_fence no_init_fence no_store_wait no_store_commit
        no_final_store_wait no_sync_before_store no_sync_after_store no_sync_after_affine affine_overwritten_too_early
        no_sync_at_the_end_of_a_split no_sync_before_dealloc no_load_wait no_sync_before_count no_sync_after_count
        no_split_fences no_launch_wait dependents_never_launched no_accumulator_release no_ab_commit no_dealloc
        no_relinquish no_tmem_pointer_barrier no_tmem_pointer_barriers no_sfb_shift_at_64 no_sfb_shift_at_192
        split_counter_not_reset consumer_keeps_parity producer_keeps_parity""",
    "weakened": """
        store_wait_too_lax split_count_relaxed stage_freed_without_commit fence_of_global_only split_count_of_the_cta
        split_count_of_the_cluster split_fences_of_the_cta split_count_by_load_and_store accumulator_released_relaxed
        accumulator_released_to_the_cta split_count_without_release""",
    "misplaced": """
        accumulator_released_too_early dealloc_before_the_tiles lora_issued_before_its_wait first_split_reduces
        launch_wait_behind_a_load launch_wait_before_the_barrier dependents_launched_at_once y_cleared_early
        counter_cleared_early partial_overwritten_early overlap_drained_from_the_wrong_end fence_before_the_writes
        last_write_behind_the_fence store_committed_too_early store_waited_too_early stage_committed_too_early
        init_fence_behind_the_arrival split_fence_before_the_barrier load_wait_behind_the_release
        proxy_fence_of_the_storing_warp""",
    "wrong thread": """
        launch_wait_of_the_epilogue launch_wait_of_the_tma_warp expect_by_all_lanes commit_by_all_lanes
        load_by_all_lanes mma_by_all_lanes fence_by_one_lane store_wait_by_another_lane store_commit_by_another_lane
        stage_committed_by_another_lane mma_by_another_lane alloc_by_half_a_warp accumulator_loaded_by_half_a_warp
        dealloc_by_one_lane sync_of_one_lane init_fence_by_another_warp no_cluster_wait_of_the_tma_warp
        no_cluster_wait_of_the_epilogue launch_wait_of_the_first_cluster no_proxy_fence_of_one_warp""",
    "wrong value": """
        ab_producer_parity ab_consumer_parity lora_producer_parity lora_consumer_parity acc_producer_parity
        acc_consumer_parity dealloc_parity consumer_wraps_early producer_wraps_late epilogue_wraps_early
        load_signals_the_next_stage ab_commit_on_the_full_barrier acc_commit_on_the_empty_barrier
        ab_commit_on_the_next_stage epilogue_waits_for_the_next_stage load_into_the_next_slot sfb_loaded_over_sfa
        b_from_another_k b_coordinate_misaligned output_stored_twice stores_overlap store_one_tile_down
        store_to_the_first_rows
        store_reads_the_other_slot epilogue_reads_the_other_stage epilogue_reads_one_subtile bias_of_another_column
        partials_of_one_split partial_counted_twice a_block_twice b_block_too_far lora_block_twice
        mma_reads_the_next_slot sfa_copied_twice sfa_of_another_block acc_stage_stride_half accumulators_overlap
        sfa_on_the_accumulator sfb_on_sfa accumulates_over_the_tile_boundary first_block_overwrites
        second_block_overwrites lora_overwrites reserved_bit_of_the_instruction collector_never_filled
        parity_of_one_slot mma_waits_for_the_other_accumulator accumulator_released_to_the_own_cta
        dealloc_shakes_its_own_hand one_k_tile_too_many""",
    "wrong size": """
        expect_16_more expect_16_less expect_one_cta_of_the_pair expect_forgets_sfb ride_expects_a_full_stage
        lora_expect_16_more ab_empty_count_plus_one acc_full_count_plus_one acc_empty_count_plus_one
        acc_empty_count_half lora_full_count_plus_one ab_empty_count_minus_one dealloc_count_half
        sync_of_too_many_threads half_the_columns dealloc_of_half sfa_to_half_of_the_lanes
        expect_16_less_in_one_slot sync_of_too_few_threads""",
    "wrong mask": """
        sfb_mask_without_peer a_mask_without_sharers b_mask_of_all_ctas b_without_multicast
        barrier_without_leader_bits acc_commit_without_peer ab_commit_without_peer ab_commit_without_sharers
        elected_among_half_a_warp dealloc_for_a_pair ab_commit_to_all_ctas a_mask_of_the_other_sharers""",
}
KINDS = {kind: tuple(names.split()) for kind, names in _NAMES.items()}
