"""Tests marked ``slow``, as path's end or path's end::function. `make test` leaves them out, CI
does not: variations of what faster tests of the same thing show (`test_conformance.py` has some
points of each scheme), and what mostly waits."""

SLOW = tuple(
    """
notebooks/02_cost_models.ipynb notebooks/03_atp.ipynb notebooks/04_axonn.ipynb
notebooks/05_merak.ipynb notebooks/06_t3.ipynb
test_atp_lab.py test_atp_notebook_lab.py test_axonn_lab.py test_axonn_notebook_lab.py
test_explore_lab.py test_merak_lab.py test_merak_notebook_lab.py test_microscope_lab.py
test_t3_lab.py test_lab.py::test_the_two_settings_differ_in_their_threads
test_compiled.py test_doctor.py test_interrupts.py test_leftovers.py test_torchrun.py
test_matrix.py::test_the_rule_is_what_emulated_ranks_measure
test_parallel_axonn.py test_parallel_deferred.py test_parallel_equality.py
test_parallel_pipeline.py test_parallel_trainer.py test_parallel_verdict.py
test_parallel_world_of_eight.py
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
test_data.py::test_equals_one_process test_megatron.py::test_equals_one_process
test_memory_formulas.py::test_equals_what_is_tracked
test_memory_formulas.py::test_the_peak_may_be_in_the_last_block
test_memory_formulas.py::test_small_buckets_are_never_undercounted
test_merak.py::test_equals_one_process
test_merak.py::test_ledgers_and_times_are_those_of_the_simulation
test_merak.py::test_odd_microbatches_blocks_and_halves test_merak.py::test_stage_aware
test_merak_bugs.py::test_verify_flags_every_fault
test_merak_memory.py test_merak_partition_limits.py test_merak_repeated.py
test_scheme_costs.py::test_equals_the_simulation_on_any_cluster
test_t3.py::test_equals_one_process test_t3_cost.py::test_formula_and_simulation_agree
test_t3_paper.py test_zoo.py
""".split()
)
