"""A JupyterHub on one machine, for a class: a JupyterLab for each, with limits, ended when idle.

    pip install "tpviz[lab]" jupyterhub jupyterhub-idle-culler
    npm install -g configurable-http-proxy
    TPVIZ_HUB_PASSWORD=... jupyterhub -f hub/jupyterhub_config.py

Everybody has the one password of the class and a name of their own, and all servers run as the user
who started the hub: for people who trust each other, behind a network of their own. JupyterHub's
documentation has authenticators and spawners for all else. `make hub-check` runs this file.
"""

import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821
password = os.environ.get("TPVIZ_HUB_PASSWORD", "")
if len(password) < 8:
    sys.exit("TPVIZ_HUB_PASSWORD: the password of the class, of 8 characters or more")
homes = Path(os.environ.get("TPVIZ_HUB_HOMES", "homes")).resolve()
idle = int(os.environ.get("TPVIZ_HUB_IDLE_SECONDS", "3600"))
people = int(os.environ.get("TPVIZ_HUB_PEOPLE", "40"))

c.JupyterHub.bind_url = os.environ.get("TPVIZ_HUB_ADDRESS", "http://127.0.0.1:8000")
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = password
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = f"{homes}/{{username}}"


# -- what a server may take ------------------------------------------------------------------------
c.JupyterHub.active_server_limit = people  # the next one is told that the hub is full
c.JupyterHub.concurrent_spawn_limit = 8
# This spawner tells a server its limits and does not hold it to them; containers do: values.yaml.
c.Spawner.mem_limit = "3G"
c.Spawner.cpu_limit = 2
c.Spawner.start_timeout = 300
c.Spawner.environment = {
    "OMP_NUM_THREADS": "1",  # of a rank
    "TPVIZ_MAX_RANKS": "8",  # more are refused, with a message
}


# -- when it is ended ------------------------------------------------------------------------------
every = max(1, min(300, idle // 4))
c.JupyterHub.last_activity_interval = every
c.Spawner.environment["JUPYTERHUB_ACTIVITY_INTERVAL"] = str(every)
c.JupyterHub.services = [
    {
        "name": "culler",
        "command": [
            *(sys.executable, "-m", "jupyterhub_idle_culler"),
            *(f"--timeout={idle}", f"--cull-every={every}", "--max-age=28800"),
        ],
    }
]
scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
c.JupyterHub.load_roles = [{"name": "culler", "scopes": scopes, "services": ["culler"]}]


# -- what people find ------------------------------------------------------------------------------
def copy_notebooks(spawner) -> None:
    """The notebooks into a new home; those that are there, and may be worked on, are kept."""
    from tpviz.course import lab

    lab.copy_notebooks(homes / spawner.user.name / "tpviz-notebooks")


c.Spawner.pre_spawn_hook = copy_notebooks
c.Spawner.default_url = "/lab/tree/tpviz-notebooks/00_start.ipynb"
