"""The hashed locks of the images in hub/: ``make lock``, after a change of constraints.txt.

uv resolves pyproject.toml's ``lab`` and hub/requirements.in within constraints.txt, for Python 3.11
on Linux. torch and what only its GPU build needs go into files of their own: an image installs one
of torch-cpu.txt and torch-gpu.txt, and requirements.txt. The CPU wheel is asked of pip, so its
index must be configured (PIP_EXTRA_INDEX_URL).
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from beside import ROOT

UV = "uv==0.13.9"
HUB = ROOT / "hub"
OF_TORCH = re.compile(r"(torch|nvidia-.*|cuda-.*|triton)==")
OPTIONS = """--quiet --generate-hashes --no-header --no-annotate --no-emit-index-url
--python-version 3.11 --python-platform x86_64-manylinux_2_28
-c constraints.txt pyproject.toml --extra lab hub/requirements.in""".split()


def main() -> None:
    """Write the three files."""
    with tempfile.TemporaryDirectory(prefix="tpviz-lock-") as text:
        folder, pip = Path(text), [sys.executable, "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--target", folder, UV], check=True)
        command = [folder / "bin/uv", "pip", "compile", *OPTIONS]
        said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        entries = re.findall(r"^\S.*?(?=^\S|\Z)", said.stdout, re.M | re.S)
        write("torch-gpu.txt", [one for one in entries if OF_TORCH.match(one)])
        write("requirements.txt", [one for one in entries if not OF_TORCH.match(one)])
        version = re.search(r"^torch==(\S+)", said.stdout, re.M)[1]
        wanted = f"torch=={version}+cpu"
        only = ["--no-deps", "--only-binary=:all:", "--python-version=3.11"]
        subprocess.run([*pip, "download", "--quiet", *only, "-d", folder, wanted], check=True)
        [wheel] = folder.glob("torch-*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        write("torch-cpu.txt", [f"{wanted} \\\n    --hash=sha256:{digest}\n"])


def write(name: str, entries: list[str]) -> None:
    """One lock."""
    assert entries, name
    (HUB / name).write_text("# Made by `make lock`.\n" + "".join(entries))
    print(f"hub/{name}: {len(entries)} packages")


if __name__ == "__main__":
    main()
