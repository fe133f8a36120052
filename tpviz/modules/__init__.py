"""A user's own module on a mesh: `parallelize`, the rules it finds layers by, and its check.

The package is not called as its function is: ``tpviz.parallelize`` would then be one or the other,
by the order of imports.
"""

from .module import Parallelized, parallelize
from .rules import Pair
from .trainer import Trainer, TrainingArguments
from .verification import verify_parallel

__all__ = ["Pair", "Parallelized", "Trainer", "TrainingArguments", "parallelize", "verify_parallel"]
