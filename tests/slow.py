"""Tests marked ``slow``, as path's end or path's end::function: variations of what faster tests of
the same thing show, and what mostly waits. `make test` leaves them out, CI does not."""

SLOW = tuple(
    """
notebooks/02_cost_models.ipynb notebooks/03_atp.ipynb notebooks/04_axonn.ipynb
notebooks/05_merak.ipynb notebooks/06_t3.ipynb
test_atp_lab.py test_atp_notebook_lab.py test_axonn_notebook_lab.py test_explore_lab.py
test_merak_notebook_lab.py test_microscope_lab.py
test_compiled.py test_doctor.py test_interrupts.py test_leftovers.py test_torchrun.py
test_matrix.py::test_the_rule_is_what_emulated_ranks_measure
test_parallel_axonn.py test_parallel_deferred.py test_parallel_equality.py
test_parallel_pipeline.py test_parallel_trainer.py test_parallel_verdict.py
test_parallel_world_of_eight.py
test_atp.py::test_volumes_of_a_block test_atp_bugs.py::test_verify_flags_every_fault
test_axonn.py::test_equals_the_simulation test_axonn_bugs.py::test_verify_flags_every_fault
test_axonn_clip.py test_axonn_gather.py test_axonn_overlap.py test_axonn_tuner.py
test_memory_formulas.py::test_equals_what_is_tracked
test_merak_bugs.py::test_verify_flags_every_fault
test_merak_memory.py test_merak_partition_limits.py test_merak_repeated.py
test_scheme_costs.py::test_equals_the_simulation_on_any_cluster
test_t3_paper.py test_zoo.py
""".split()
)
