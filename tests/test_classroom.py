"""What a class runs on, as far as it can be tried here: nbgrader, JupyterHub, images."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from traitlets.config import Config

ROOT = Path(__file__).parents[1]


@pytest.fixture
def scripts(monkeypatch):
    """The checks of `.ci`, by name."""
    from importlib import import_module

    monkeypatch.syspath_prepend(ROOT / ".ci")
    yield import_module
    for name in ("grading", "beside"):
        sys.modules.pop(name, None)


def passes(script):
    """Run a check as `make hub-check` does; what it prints."""
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / script], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_nbgrader_gives_right_answers_all_points_and_wrong_ones_fewer():
    said = passes("grading.py")
    assert "'half': 10.0, 'right': 20.0, 'tampered': 0.0, 'unanswered': 0.0, 'wrong': 0.0" in said


def test_submissions_to_nbgrader_differ_as_they_should(scripts, tmp_path, monkeypatch):
    grading = scripts("grading")
    monkeypatch.syspath_prepend(ROOT / "docs/teacher")
    import export_assignments as export

    tasks = [task for task in export.exercises() if task.notebook == grading.ASSIGNMENT]
    book = export.released(export.assignment(grading.ASSIGNMENT, tasks))
    file = tmp_path / "release" / grading.ASSIGNMENT / f"{grading.ASSIGNMENT}.ipynb"
    file.parent.mkdir(parents=True)
    nbformat.write(book, file)
    grading.hand_in(tmp_path, grading.submissions())

    def of(student):
        folder = tmp_path / "submitted" / student / grading.ASSIGNMENT
        cells = nbformat.read(folder / file.name, as_version=4).cells
        return {c.metadata.nbgrader.grade_id: c.source for c in cells if "nbgrader" in c.metadata}

    right, half, wrong, tampered = map(of, ("right", "half", "wrong", "tampered"))
    key = grading.answer_key(grading.ASSIGNMENT)
    assert {name: right[name] for name in key} == key
    assert half["mean_over_ranks"] == right["mean_over_ranks"] != wrong["mean_over_ranks"]
    assert half["row_parallel"] == wrong["row_parallel"] != right["row_parallel"]
    assert tampered["check_row_parallel"] == "pass" != wrong["check_row_parallel"]
    assert of("unanswered") == {c.metadata.nbgrader.grade_id: c.source for c in book.cells[1:]}
    assert grading.POINTS == sum(10 * task.difficulty for task in tasks)


def test_what_a_check_leaves_running_is_named_and_ended(scripts, monkeypatch):
    beside = scripts("beside")
    monkeypatch.setattr(beside.running, "__defaults__", (0.1,))  # s to end by itself
    with pytest.raises(AssertionError, match="sleep"), beside.watched("test") as (folder, env):
        sleeper = subprocess.Popen(["sleep", "600"], env=env)
    assert sleeper.wait(10) == -9
    assert not folder.exists()
    assert str(os.environ["HOME"]) != env["HOME"] == str(folder)


# -- the hub ---------------------------------------------------------------------------------------
@pytest.mark.sweep
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_two_people_on_a_hub_are_served_limited_and_culled():
    said = passes("hub.py")
    assert "each has run the first notebook" in said
    assert "the culler has ended the server of one who left, and kept the other" in said
    assert "nothing is left" in said


@pytest.mark.sweep
@pytest.mark.browser
@pytest.mark.timeout(300)
def test_views_answer_in_marimo():
    assert "views are drawn and answer" in passes("in_marimo.py")


def configured(folder, monkeypatch, **told):
    """hub/jupyterhub_config.py as JupyterHub reads it."""
    for name in [name for name in os.environ if name.startswith("TPVIZ_HUB")]:
        monkeypatch.delenv(name)
    for name, value in ({"HOMES": str(folder)} | told).items():
        monkeypatch.setenv(f"TPVIZ_HUB_{name}", value)
    c, file = Config(), ROOT / "hub/jupyterhub_config.py"
    exec(compile(file.read_text(), str(file), "exec"), {"get_config": lambda: c})
    return c


def test_a_hub_has_a_password_limits_and_a_culler_that_may_cull(tmp_path, monkeypatch):
    c = configured(tmp_path, monkeypatch, PASSWORD="of-a-class", IDLE_SECONDS="600", PEOPLE="12")
    assert c.DummyAuthenticator.password == "of-a-class"
    assert c.JupyterHub.bind_url.startswith("http://127.0.0.1:")
    assert c.JupyterHub.active_server_limit == 12
    [culler] = c.JupyterHub.services
    [role] = c.JupyterHub.load_roles
    assert {"--timeout=600", "--cull-every=150"} <= set(culler["command"])
    assert role["services"] == [culler["name"]] and "delete:servers" in role["scopes"]
    assert int(c.Spawner.environment["JUPYTERHUB_ACTIVITY_INTERVAL"]) * 2 < 600
    c.Spawner.pre_spawn_hook(SimpleNamespace(user=SimpleNamespace(name="ada")))
    assert (tmp_path / "ada" / c.Spawner.default_url.removeprefix("/lab/tree/")).is_file()


def test_a_hub_without_a_password_does_not_start(tmp_path, monkeypatch):
    for told in ({}, {"PASSWORD": "short"}):
        with pytest.raises(SystemExit, match="8 characters"):
            configured(tmp_path, monkeypatch, **told)


# -- images ----------------------------------------------------------------------------------------
IMAGES = sorted((ROOT / "hub").glob("Dockerfile*"))
LOCKS = sorted((ROOT / "hub").glob("*.txt"))


def steps(image):
    """[(instruction, its words)] of a Dockerfile."""
    lines = [line for line in image.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line]


def locked(file):
    """{package: (version, hashes)}."""
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    .*\n?)+)", file.read_text(), re.M)
    return {
        name: (version, re.findall(r"--hash=sha256:(\w{64})", rest))
        for name, version, rest in entries
    }


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_can_be_built_from_the_tree(image):
    """As far as that is seen without Docker, which has not built it here."""
    done = steps(image)
    [base] = [words for name, words in done if name == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for name, words in done if name == "COPY" for source in words.split()[:-1]]
    assert {"tpviz", "notebooks", "hub/requirements.txt"} <= set(copied)
    assert [source for source in copied if not (ROOT / source).exists() or source in ignored] == []
    runs = [words for name, words in done if name == "RUN"]
    for run in runs:
        subprocess.run(["sh", "-n"], input=run, text=True, check=True)
        for command in re.findall(r"pip install [^&]+", run):
            assert "--no-deps" in command and re.search("--require-hashes|--no-index", command)
    assert [words for name, words in done if name == "USER"] == ["learner"]
    assert runs[-1] == "tpviz doctor"
    assert "tpviz lab --no-open && exec jupyter lab" in done[-1][1]


def test_locks_have_hashes_and_our_pins_and_say_nothing_of_where():
    assert [file.name for file in LOCKS] == ["requirements.txt", "torch-cpu.txt", "torch-gpu.txt"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    together = {}
    for file in LOCKS:
        lock = locked(file)
        assert len(lock) == file.read_text().count("==") and all(h for _, h in lock.values())
        assert "://" not in file.read_text()
        together |= {name: version.partition("+")[0] for name, (version, _) in lock.items()}
    differ = {n: v for n, v in together.items() if pins.get(n, v) != v}
    assert differ == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["lab"]
    wanted += (ROOT / "hub/requirements.in").read_text().splitlines()[1:]
    assert {re.match(r"[\w-]+", line).group() for line in wanted} <= together.keys()


def test_values_of_a_cluster_are_those_of_the_hub(tmp_path, monkeypatch):
    values = yaml.safe_load((ROOT / "hub/values.yaml").read_text())
    c, user = configured(tmp_path, monkeypatch, PASSWORD="of-a-class"), values["singleuser"]
    assert user["defaultUrl"] == c.Spawner.default_url
    assert user["memory"]["limit"] == c.Spawner.mem_limit
    assert user["cpu"]["limit"] == c.Spawner.cpu_limit
    assert user["extraEnv"].items() <= c.Spawner.environment.items()
    cull = values["cull"]
    told = {f"--timeout={cull['timeout']}", f"--cull-every={cull['every']}"}
    assert told | {f"--max-age={cull['maxAge']}"} <= set(c.JupyterHub.services[0]["command"])
    volumes = {one["name"] for one in user["storage"]["extraVolumes"]}
    assert {one["name"] for one in user["storage"]["extraVolumeMounts"]} == volumes


def test_the_workflow_runs_the_checks():
    flow = yaml.safe_load((ROOT / ".github/workflows/hub.yml").read_text())
    commands = [
        step["run"] for job in flow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert "make hub-check" in commands
    assert any("-f hub/Dockerfile " in command for command in commands)
