"""The last exercises of notebooks 10 to 15: from the evidence to the place and the cause, in a bug
zoo. `zoo.examine` compares one step of a broken program with the same program without the fault,
layer by layer, on the same ranks; the first error gives the place, and the rest of the evidence the
cause.
"""

from .told import told
from .zoo import CASES, WRONG, Diagnosis


def _diagnosis(name: str, known: str, blocks: bool = False) -> Diagnosis:
    """The exercise on a zoo; known: the fault that a learner looks at first."""
    zoo, texts = name.replace("bugs", "zoo"), told(name)
    look = told("atp_bugs")["messages"]["look"]
    table = texts["messages"]["table"]
    facts = {
        "look": look.format(zoo=zoo, cause=known, table=table),
        "causes": "; ".join(texts["shows"]),
    }
    return Diagnosis(**told(name, cases=CASES, wrong=WRONG, **facts), zoo=zoo, blocks=blocks)


ATP = _diagnosis("atp_bugs", "output not summed")
AXONN = _diagnosis("axonn_bugs", "bias not summed over z")
MERAK = _diagnosis("merak_bugs", "gradient not summed", blocks=True)
T3 = _diagnosis("t3_bugs", "triggered after one update")
CONTEXT = _diagnosis("context_bugs", "own mask on every block")
EXPERTS = _diagnosis("experts_bugs", "combine without weights")
