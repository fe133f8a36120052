"""Makes the GPU build of torch importable without its GPU packages (3 GB), for tests on the CPU.

    python .ci/no_gpu.py FOLDER/site-packages/torch/lib

torch's libraries name those of CUDA, cuDNN, NCCL and others, and the loader wants every function of
theirs. One library of functions that only return an error takes the place of them all: torch then
finds no GPU. Needs ``cc``, ``nm`` and ``readelf``.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

GPU_FUNCTION = re.compile(r"(__cuda|cu|nccl|nv)\w")
GPU_LIBRARY = re.compile(r"lib(cu|nccl|nv)")
NO_DEVICE = 100  # cudaErrorNoDevice; an error to the other libraries, too
NAME = "libno_gpu.so"


def stand_in(folder: Path):
    """Write the stand-in for what torch's libraries in ``folder`` need and nothing there has."""
    libraries = [path for path in sorted(folder.glob("lib*.so")) if not path.is_symlink()]
    wanted = _symbols(libraries, "--undefined-only") - _symbols(libraries, "--defined-only")
    versions = defaultdict(list)  # the loader wants each function under its library's version
    for symbol in sorted(filter(GPU_FUNCTION.match, wanted)):
        name, _, version = symbol.partition("@")
        versions[version].append(name)
    code = "".join(
        f"int {name}(void) {{ return {NO_DEVICE}; }}\n"
        for names in versions.values()
        for name in names
    )
    script = folder / "no_gpu.map"
    script.write_text(
        "".join(
            f"{version} {{ {'; '.join(names)}; }};\n"
            for version, names in versions.items()
            if version
        )
    )
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-fno-builtin",
            "-w",
            "-x",
            "c",
            "-",
            f"-Wl,--version-script={script}",
            "-o",
            folder / NAME,
        ],
        input=code,
        text=True,
        check=True,
    )
    for library in filter(GPU_LIBRARY.match, _needed(libraries)):
        if not (folder / library).exists():
            (folder / library).symlink_to(NAME)


def _symbols(libraries, kind):
    lines = _lines(["nm", "-D", "--with-symbol-versions", kind, *libraries])
    return {line.split()[-1].replace("@@", "@") for line in lines if " " in line}


def _needed(libraries):
    found = re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(_lines(["readelf", "-d", *libraries])))
    return sorted(set(found))


def _lines(command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    stand_in(Path(sys.argv[1]))
