"""Tests marked ``slow``, as path's end or path's end::function, or so marked where only some cases
are. `make test` leaves them out:
variations of what faster tests of the same thing show (`test_conformance.py` has some points of
each scheme), and what mostly waits.

CI runs the notebooks, the seeded bugs and one in ten of the other functions, with all cases, which
often run as one batch; they are drawn anew for each commit so that all have their turn.
`make sweep` runs all, before a release. pytest's first lines name the draw: TPVIZ_DRAW=<that>
repeats it.
"""

import os
import random
import subprocess
from pathlib import Path

SLOW = tuple(
    """
notebooks/01_ranks_meshes_collectives.ipynb notebooks/02_data_parallelism.ipynb
notebooks/03_tensor_parallelism.ipynb
notebooks/04_pipelines.ipynb
notebooks/05_memory_and_precision.ipynb notebooks/06_overlap.ipynb
notebooks/07_cost_models.ipynb notebooks/08_beat_the_cluster.ipynb
notebooks/09_capstone.ipynb notebooks/10_atp.ipynb
notebooks/11_axonn.ipynb notebooks/12_merak.ipynb notebooks/13_t3.ipynb
notebooks/14_context.ipynb notebooks/15_experts.ipynb
test_atp_lab.py test_atp_notebook_lab.py test_axonn_lab.py test_axonn_notebook_lab.py
test_context_notebook_lab.py test_experts_notebook_lab.py
test_explore_lab.py test_merak_lab.py test_merak_notebook_lab.py test_microscope_lab.py
test_hosts_lab.py test_planner_lab.py test_t3_lab.py test_tabs_lab.py
test_lab.py::test_the_two_settings_differ_in_their_threads
test_planner.py::test_a_plan_in_small_runs_on_real_ranks
test_claims.py::test_the_searches_for_the_fastest_plans
test_faults.py::test_a_script_whose_standard_streams_are_closed
test_search_published.py
test_search_experts.py::test_the_best_plan_fits_and_equals_one_process
test_search_context.py::test_llama_of_long_sequences_on_64
test_search_context.py::test_no_published_plan_of_long_sequences_is_faster
test_cells_on_ranks.py
test_compiled.py test_doctor.py test_interrupts.py test_leftovers.py test_torchrun.py
test_torchrun_hosts.py test_doctor_hosts.py test_use_hosts.py
test_use.py::test_a_caller_that_is_silent_leaves_no_ranks
test_use.py::test_signs_of_life_keep_ranks_that_are_idle
test_use.py::test_an_engine_that_stands_still_is_out_of_reach_and_its_ranks_end_when_it_goes_on
test_use.py::test_an_engine_that_dies_is_named_and_others_go_on_without_it
test_matrix.py::test_the_rule_is_what_emulated_ranks_measure
test_experts_time.py::test_uneven_loads_cost_what_emulated_ranks_show
test_parallel_axonn.py test_parallel_deferred.py test_parallel_equality.py
test_parallel_pipeline.py test_parallel_trainer.py test_parallel_verdict.py
test_parallel_world_of_eight.py test_parallel_suggest.py::test_other_families_as_falcon
test_parallel_experts.py::test_eight_ranks
test_atp.py::test_equals_one_process test_atp.py::test_any_number_of_chunks
test_atp.py::test_inside_data_parallelism test_atp.py::test_volumes_of_a_block
test_atp.py::test_volumes_of_a_block_captured_and_run
test_atp.py::test_ledgers_of_run_and_capture_are_the_formulas
test_atp_bugs.py::test_verify_flags_every_fault
test_atp_bugs.py::test_flagged_where_the_axes_are_unequal
test_atp_bugs.py::test_the_ledger_says_in_which_direction_bytes_are_missing
test_axonn.py::test_equals_one_process test_axonn.py::test_equals_the_simulation
test_axonn.py::test_ledgers_of_run_and_capture_are_the_formulas
test_axonn.py::test_overlaps_change_no_number
test_axonn_bugs.py::test_verify_flags_every_fault
test_axonn_bugs.py::test_evidence_begins_in_the_seeded_place
test_axonn_bugs.py::test_without_the_fault_it_is_equal
test_axonn_clip.py test_axonn_gather.py test_axonn_overlap.py test_axonn_tuner.py
test_context.py::test_eight_ranks_equal_one_process
test_context.py::test_more_drawn_at_random test_experts.py::test_more_drawn_at_random
test_products.py::test_more_drawn_at_random
test_blocks.py::test_every_product_equals_one_process
test_blocks.py::test_every_product_is_predicted_as_captured
test_experts.py::test_equals_one_process
test_experts.py::test_products_of_eight_ranks_equal_one_process
test_experts.py::test_replicas_along_ep_alone_equal_one_process
test_latent.py::test_every_way_equals_one_process
test_data.py::test_equals_one_process test_diloco.py::test_equals_one_process
test_few_bits.py::test_errors_are_within_what_scales_allow
test_two_levels.py::test_equals_one_process
test_megatron.py::test_equals_one_process
test_experts_balance.py::test_every_way_equals_one_process
test_memory_formulas.py::test_equals_what_is_tracked
test_memory_formulas.py::test_the_peak_may_be_in_the_last_block
test_memory_formulas.py::test_small_buckets_are_never_undercounted
test_merak.py::test_equals_one_process
test_merak.py::test_ledgers_and_times_are_those_of_the_simulation
test_merak.py::test_odd_microbatches_blocks_and_halves test_merak.py::test_stage_aware
test_merak_bugs.py::test_verify_flags_every_fault
test_merak_memory.py test_merak_partition_limits.py test_merak_repeated.py
test_merak_zero.py::test_equals_one_process test_merak_zero.py::test_memory_equals_what_is_tracked
test_merak_zero.py::test_ledgers_and_times_are_those_of_the_simulation
test_merak_layout.py::test_ledgers_and_times_are_those_of_the_simulation
test_merak_layout.py::test_zero_shards_what_a_stage_has
test_models.py::test_each_trait_alone_equals_one_process
test_microbatches.py::test_ledger_and_time_are_those_of_the_program
test_microbatches.py::test_equals_one_process test_microbatches.py::test_memory_is_what_is_tracked
test_documents.py::test_in_products
test_scheme_costs.py::test_equals_the_simulation_on_any_cluster
test_t3.py::test_equals_one_process test_t3_cost.py::test_formula_and_simulation_agree
test_t3_paper.py test_zoo.py
test_alike.py::test_shared_rows_are_those_of_every_ranks_own_replay
test_capture.py::test_captured_rows_are_those_of_a_run
test_compare.py::test_an_emulated_run_names_the_seeded_fault
test_axonn.py::test_three_steps_on_odd_sizes
test_exercises.py::test_hints_do_not_hang_on_the_draw
test_exercises.py::test_right_numbers_are_no_mistake_for_any_inputs
test_faults.py::test_a_fork_server_that_died_is_replaced
test_kineto_gloo.py::test_gloo_collectives_are_found_with_bytes_members_and_order
test_scheme_costs.py::test_kernels_are_those_of_the_program
test_t3_cost.py::test_fusing_pays_where_sums_are_long
test_t3_cost.py::test_memory_is_what_is_tracked
test_launch.py::test_a_forked_child_starts_its_own_ranks_and_leaves_ours_alone
test_merak.py::test_schedules_give_the_same_bits
test_merak_bugs.py::test_the_evidence_leads_to_place_and_cause
test_merak_in_flight.py::test_real_ranks_hold_as_many_as_the_schedule_says
test_merak_partition.py::test_a_chain_of_stages_is_the_model
test_merak_schedules.py::test_every_schedule_runs_or_is_refused
test_parallel_easy.py::test_grids_of_four
test_search.py::test_the_first_are_run
test_atp_bugs.py::test_without_the_fault_it_is_equal
test_calibrate.py::test_on_real_ranks test_parallel_easy.py::test_hugging_face
test_t3_bugs.py::test_the_evidence_leads_to_place_and_cause
test_t3_bugs.py::test_verify_flags_every_fault
""".split()
)

ALWAYS = ".ipynb", "::test_verify_flags_every_fault", "test_passed_on.py::test_the_notebooks"
"""Ends of those that CI does not draw."""
SHARE = 1 / 10


def draw() -> str:
    """What is drawn hangs on this alone: TPVIZ_DRAW, or the commit."""
    if chosen := os.environ.get("TPVIZ_DRAW"):
        return chosen
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def drawn(function: str, of: str) -> bool:
    """Whether the draw ``of`` a commit has this slow test, path::function."""
    return random.Random(f"{of} {function}").random() < SHARE
