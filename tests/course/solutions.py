"""All answers by exercise: ``RIGHT`` {name: [function]}, ``WRONG`` {name: [(function, hint)]}.

Kept out of the package, so that a learner does not meet them by accident.
"""

import solutions_atp
import solutions_atp_bugs
import solutions_atp_layers
import solutions_axonn
import solutions_axonn_bugs
import solutions_axonn_layers
import solutions_capstone
import solutions_context
import solutions_context_bugs
import solutions_context_ring
import solutions_costs
import solutions_costs_runs
import solutions_experts
import solutions_experts_bugs
import solutions_layouts
import solutions_memory
import solutions_merak
import solutions_merak_bugs
import solutions_merak_ranks
import solutions_meshes
import solutions_overlap
import solutions_pipelines
import solutions_start
import solutions_t3
import solutions_t3_bugs
import solutions_t3_maps
import solutions_tensor
import solutions_zero

_MODULES = (
    solutions_start,
    solutions_meshes,
    solutions_costs,
    solutions_costs_runs,
    solutions_atp,
    solutions_atp_layers,
    solutions_atp_bugs,
    solutions_axonn,
    solutions_axonn_layers,
    solutions_axonn_bugs,
    solutions_merak,
    solutions_merak_ranks,
    solutions_merak_bugs,
    solutions_t3,
    solutions_t3_maps,
    solutions_t3_bugs,
    solutions_context,
    solutions_context_ring,
    solutions_context_bugs,
    solutions_experts,
    solutions_experts_bugs,
    solutions_layouts,
    solutions_zero,
    solutions_tensor,
    solutions_pipelines,
    solutions_capstone,
    solutions_overlap,
    solutions_memory,
)
RIGHT = {name: fns for module in _MODULES for name, fns in module.RIGHT.items()}
WRONG = {name: cases for module in _MODULES for name, cases in module.WRONG.items()}
