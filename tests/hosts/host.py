"""The first process of a host in a test: makes its file systems and name, then waits.

    python host.py NAME SECONDS < lines of /etc/hosts, an empty line     (inside new namespaces)

Prints "ok" once the host stands. All its processes end with this one: after SECONDS, or when
standard input is closed.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile

name, seconds = sys.argv[1], float(sys.argv[2])
socket.sethostname(name)
names = "".join(iter(sys.stdin.readline, "\n"))
for place in ("/tmp", "/dev/shm"):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
# Without a name server: torch asks for the names of addresses, and would wait for one out of reach.
texts = {"/etc/hosts": names, "/etc/hostname": name + "\n", "/etc/resolv.conf": ""}
for target, text in texts.items():
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as file:
        file.write(text)
        file.flush()
        os.chmod(file.name, 0o644)
        subprocess.run(["mount", "--bind", file.name, target], check=True)
os.environ["TMPDIR"] = "/tmp"
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the kernel buries whatever ends here
print("ok", flush=True)
select.select([sys.stdin], [], [], seconds)
