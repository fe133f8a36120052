"""Who has no key: connects to each port that it is told, as long as it is told any.

    python stranger.py KIND TIMES < lines "address port"

KIND of what it sends: "random" bytes of all lengths, nothing for "silent", 2 MB for "huge", and for
"forged" the small numbers by which gloo's own connections say who they are. It holds silent ones
open. At the end a line of JSON: {"tries": how many, "came": how many connected, "told": {port:
bytes that it was sent, as hex}}.
"""

import json
import os
import random
import socket
import sys
import threading
from contextlib import suppress

kind, times = sys.argv[1], int(sys.argv[2])
tries = came = 0
told, held, going = {}, [], []


def data(number):
    if kind == "huge":
        return os.urandom(1 << 21)
    if kind == "forged":
        return (number % 16).to_bytes(8, "little")
    return os.urandom(random.choice((1, 8, 64, 300, 5000))) if kind == "random" else b""


def visit(address, port):
    global tries, came
    for number in range(times):
        tries += 1
        with suppress(OSError):
            caller = socket.create_connection((address, port), timeout=0.3)
            came += 1
            held.append(caller)
            caller.settimeout(0.02)
            with suppress(TimeoutError):
                caller.sendall(data(number))
                if kind == "random" and number % 2:
                    caller.shutdown(socket.SHUT_WR)  # half open
                answer = caller.recv(100)
                if answer:
                    told[port] = answer.hex()
            if kind != "silent" and len(held) > 50:
                held.pop(0).close()


for line in sys.stdin:
    address, port = line.split()
    going.append(threading.Thread(target=visit, args=(address, int(port)), daemon=True))
    going[-1].start()
for thread in going:
    thread.join(20)
print(json.dumps({"tries": tries, "came": came, "told": told}))
