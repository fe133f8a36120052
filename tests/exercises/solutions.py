"""All answers by exercise: ``RIGHT`` {name: [function]}, ``WRONG`` {name: [(function, hint)]}.

Kept out of the package, so that a learner does not meet them by accident.
"""

import solutions_costs
import solutions_meshes
import solutions_start

RIGHT = {**solutions_start.RIGHT, **solutions_meshes.RIGHT, **solutions_costs.RIGHT}
WRONG = {**solutions_start.WRONG, **solutions_meshes.WRONG, **solutions_costs.WRONG}
