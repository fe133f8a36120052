"""What IPython runs first in JupyterLite, whose environment names it as PYTHONSTARTUP."""

from IPython.core.getipython import get_ipython

from tpviz.course import without_ranks

if get_ipython():  # not where a tool only imports this
    without_ranks.install(get_ipython())
del get_ipython, without_ranks
