"""What docs/schedulers.md says can be read by what it is for, as far as that is here."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

PAGE = (Path(__file__).parents[1] / "docs/schedulers.md").read_text()
FILES = [
    doc for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) for doc in yaml.safe_load_all(text)
]
(BATCH,) = re.findall(r"```bash\n(.*?)```", PAGE, re.S)


def test_the_batch_script_is_bash():
    done = subprocess.run(["bash", "-n"], input=BATCH, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_torchrun_takes_its_options(where):
    if where == "slurm":
        command = shlex.split(BATCH.replace("\\\n", "").split("srun ")[1])
    else:
        (pod,) = FILES[1]["spec"]["template"]["spec"]["containers"]
        command = pod["command"] + pod["args"]
    assert command[0] == "torchrun"
    said = get_args_parser().parse_args(command[1:])
    assert (said.nnodes, said.nproc_per_node, said.rdzv_backend) == ("2", "4", "c10d")
    assert said.rdzv_endpoint.endswith(":29400") and said.max_restarts == 2
    assert said.training_script.endswith("script.py")


def test_pods_find_the_first_by_its_name():
    service, job = FILES
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    (pod,) = spec["template"]["spec"]["containers"]
    assert {mount["name"] for mount in pod["volumeMounts"]} == volumes
