"""hub/jupyterhub_config.py tried with two people in Chromium, and culling: ``make hub-check``.

JupyterHub and its culler go into an environment of their own beside .venv, the proxy into a folder
of npm's. Two people log in, and each runs the first notebook to its end at the same time. A wrong
password, another's server and a third person, one more than the hub is for, are refused. One closes
the browser: the culler ends that server, and not the other. In the end no process is left.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep

from beside import MARKER, ROOT, environment, marked, watched
from playwright.sync_api import Error, sync_playwright

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/browser")]

HUB = ["jupyterhub==6.1.1", "jupyterhub-idle-culler==2.0.0"]
PROXY = "configurable-http-proxy@5.3.0"
IDLE = 12  # s until a server is culled
PASSWORD, TOKEN = "of-the-class", "a-token-of-this-check"
NOTEBOOK = "tpviz-notebooks/00_start.ipynb"
CONFIG = """
load_subconfig({config!r})
c.JupyterHub.hub_port = {hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.services += [{{"name": "check", "api_token": {token!r}}}]
scopes = ["list:users", "read:servers"]
c.JupyterHub.load_roles += [{{"name": "check", "scopes": scopes, "services": ["check"]}}]
c.Spawner.cmd = [{single!r}]
c.Spawner.args = ["--LabApp.expose_app_in_browser=True"] + ["--allow-root"] * {root}
c.Spawner.environment |= {environment!r}  # .venv's own JupyterLab
"""


def main() -> None:
    """Exit code 1, with what is wrong, where something is."""
    start = monotonic()

    def done(what):
        print(f"hub: {what}, {monotonic() - start:.0f} s", flush=True)

    log = ""
    try:
        with watched("hub") as (folder, env):
            npm = ["npm", "install", "--silent", "--prefix", folder / "node", PROXY]
            with ThreadPoolExecutor() as beside:
                proxy = beside.submit(subprocess.run, npm, check=True)
                bin = environment(folder / "venv", *HUB)
                proxy.result()
            done(f"{', '.join([*HUB, PROXY])} installed")
            hub, address = start_hub(folder, env, bin)
            try:
                people(address, folder, done)
            finally:
                log = (folder / "hub.log").read_text()
                hub.send_signal(signal.SIGTERM)
                hub.wait(60)
        done("the hub has ended, and nothing is left")
    except (subprocess.SubprocessError, AssertionError, OSError, Error) as error:
        sys.exit(f"hub: FAILED: {error}\n{log[-6000:]}")


def start_hub(folder: Path, env: dict[str, str], bin: Path) -> tuple[subprocess.Popen, str]:
    """(process, address) of the hub, when it answers."""
    ours = Path(sys.prefix)
    port, hub, api = free_ports(3)
    environment = {
        MARKER: env[MARKER],
        "JUPYTERLAB_DIR": str(ours / "share/jupyter/lab"),
        "JUPYTER_PATH": str(ours / "share/jupyter"),
        "JUPYTER_CONFIG_PATH": str(ours / "etc/jupyter"),
        "OMP_WAIT_POLICY": "passive",
    }
    config = folder / "config.py"
    config.write_text(
        CONFIG.format(
            config=str(ROOT / "hub/jupyterhub_config.py"),
            proxy=str(folder / "node/node_modules/.bin/configurable-http-proxy"),
            single=str(bin / "jupyterhub-singleuser"),
            root=int(os.geteuid() == 0),
            **{
                "hub": hub,
                "api": api,
                "folder": folder,
                "token": TOKEN,
                "environment": environment,
            },
        )
    )
    address = f"http://127.0.0.1:{port}"
    told = {
        "TPVIZ_HUB_PASSWORD": PASSWORD,
        "TPVIZ_HUB_HOMES": str(folder / "homes"),
        "TPVIZ_HUB_IDLE_SECONDS": str(IDLE),
        "TPVIZ_HUB_PEOPLE": "2",
        "TPVIZ_HUB_ADDRESS": address,
        "PATH": f"{bin}:{env['PATH']}",
    }
    with (folder / "hub.log").open("w") as out:
        process = subprocess.Popen(
            [bin / "jupyterhub", "-f", config],
            cwd=folder,
            env=env | told,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a Ctrl-C is for this script, which ends the hub
        )
    wait(lambda: process.poll() is not None or answers(f"{address}/hub/login"), 60, "no hub")
    assert process.poll() is None, (folder / "hub.log").read_text()
    return process, address


def people(address: str, folder: Path, done) -> None:
    """What two, and a third, do there."""
    from chromium import CHROMIUM, CHROMIUM_FLAGS
    from lab_page import ALL_DONE, CODE_CELL, ERROR, KERNEL_READY, OPEN, PROMPTS, RUN_ALL, SAVE

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        pages = {name: browser.new_context().new_page() for name in ("ada", "ben")}
        for name, page in pages.items():
            page.set_default_timeout(60_000)
            log_in(page, address, name, "a-wrong-one")
            page.get_by_text("Invalid username or password").wait_for()
            log_in(page, address, name, PASSWORD)  # servers start side by side
        for name, page in pages.items():
            page.wait_for_url(f"{address}/user/{name}/lab/tree/{NOTEBOOK}", timeout=120_000)
            page.wait_for_function("window.jupyterapp !== undefined")
            page.evaluate(OPEN, [NOTEBOOK, None, True])
            page.wait_for_selector(CODE_CELL)
            page.wait_for_function(KERNEL_READY)
        assert set(servers(address)) == {"ada", "ben"}
        done("two people have logged in")
        refused(browser, pages["ada"], address, folder)
        done("another's server and a third person are refused")
        for page in pages.values():
            page.evaluate(RUN_ALL)
        for name, page in pages.items():
            page.wait_for_function(ALL_DONE, arg=[PROMPTS, ERROR], timeout=150_000)
            errors = page.locator(ERROR).all_inner_texts()
            assert not errors, f"{name}: {errors[0]}"
            page.evaluate(SAVE)
            book = json.loads((folder / "homes" / name / NOTEBOOK).read_text())
            assert any(cell.get("outputs") for cell in book["cells"]), name
        done("each has run the first notebook, at the same time")
        limits(folder)
        pages["ada"].context.close()
        wait(lambda: "ada" not in servers(address), 5 * IDLE + 30, "ada's server is not culled")
        assert set(servers(address)) == {"ben"}, servers(address)
        done("the culler has ended the server of one who left, and kept the other")
        browser.close()
        wait(lambda: not servers(address), 5 * IDLE + 30, "ben's server is not culled")
        done("and then that")


def log_in(page, address: str, name: str, password: str) -> None:
    """The form of the hub, as a person fills it in."""
    page.goto(f"{address}/hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", password)
    page.click("#login_submit")


def refused(browser, page, address: str, folder: Path) -> None:
    """Somebody else's server, and a server more than the hub is for."""
    answer = page.context.request.get(f"{address}/user/ben/api/contents/{NOTEBOOK}")
    assert answer.status == 403, answer.status
    third = browser.new_context()
    late = third.new_page()
    log_in(late, address, "eve", PASSWORD)
    late.get_by_text("Active user limit exceeded").first.wait_for()
    assert set(servers(address)) == {"ada", "ben"}
    third.close()


def limits(folder: Path) -> None:
    """Both servers, and so their kernels and ranks, are told their limits."""
    needle = f"{MARKER}={folder}".encode()
    found = [
        set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        for pid, command in marked(needle).items()
        if "jupyterhub-singleuser" in command
    ]
    assert len(found) == 2, len(found)
    for told in found:
        memory = f"MEM_LIMIT={3 * 2**30}".encode()
        assert {b"OMP_NUM_THREADS=1", b"TPVIZ_MAX_RANKS=8", memory} <= told


def servers(address: str) -> dict[str, str]:
    """{person: since when idle} of those whose server runs, as the hub's API says."""
    asked = urllib.request.Request(
        f"{address}/hub/api/users", headers={"Authorization": f"token {TOKEN}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as reply:
        users = json.load(reply)
    return {user["name"]: user.get("last_activity") for user in users if user["servers"]}


def answers(address: str) -> bool:
    """Whether the page at this address loads."""
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def wait(true, seconds: float, otherwise: str) -> None:
    """Until ``true()``; raises AssertionError with words where it is not in time."""
    deadline = monotonic() + seconds
    while not true():
        assert monotonic() < deadline, f"{otherwise}: not within {seconds:g} s"
        sleep(0.3)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


if __name__ == "__main__":
    main()
