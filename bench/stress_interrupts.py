"""Interrupts at random moments of launches, in a script and in a Jupyter kernel; what survives.

    python bench/stress_interrupts.py [how many in each] [seed]

Half are pairs: the second hits within 0.3 s of the first, a launch that follows at once or what the
first has not yet finished. After each, the next launch must give the right results. World sizes
change, ranks are often just starting, and now and then the fork server too. Prints what went wrong
at once and tried and survived at every hundred; exits with 1 where a launch after an interrupt
failed.
"""

import itertools
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import tpviz as tv

SIZES = 1, 2, 3, 4
LONGEST = 0.5  # seconds from the launch to the interrupt; a warm start takes about 0.1
APART = 0.3  # seconds at most between the two of a pair


def total():
    """On a rank: what all ranks add up to."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()


def busy():
    """On a rank: collectives for as long as an interrupt may take to come."""
    for _ in range(50):
        total()
        time.sleep(LONGEST / 50)


def prepare(rnd):
    """Leave the ranks as they are, end them, or end the fork server too."""
    rnd.choice([lambda: None, lambda: None, tv.shutdown, tv.shutdown, tv.shutdown, tv.restart])()


def works(size):
    """What is wrong with the next launch, or ""."""
    try:
        found = tv.launch(total, world_size=size, timeout=60)
    except BaseException as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "" if found == [size] * size else f"{size} ranks gave {found}"


def moments(rnd):
    """Seconds from a launch to its interrupt, or to both of a pair."""
    first = rnd.uniform(0, LONGEST)
    return rnd.choice([(first,), (first, first + rnd.uniform(0, APART))])


def launches(rnd, alarms):
    """One after another until all alarms have rung."""
    for alarm in reversed(alarms):
        if alarm.ident is None:
            alarm.start()
    while any(alarm.is_alive() for alarm in alarms):
        tv.launch(busy, world_size=rnd.choice(SIZES))
    time.sleep(0.01)


def interrupted(rnd, alarms):
    """How many of the alarms, two at most, hit launches."""
    hits = 0
    try:
        try:
            launches(rnd, alarms)
        except KeyboardInterrupt:
            hits += 1
            launches(rnd, alarms)
    except KeyboardInterrupt:
        hits += 1
    return hits


@dataclass
class Tally:
    """Interrupts so far: how many, those that hit a launch, what went wrong after any."""

    where: str
    tried: int = 0
    hits: int = 0
    wrong: list = field(default_factory=list)

    def add(self, tried, hits, wrong):
        """Those of one more round, which says what went wrong and each hundred."""
        hundreds = self.tried // 100
        self.tried, self.hits = self.tried + tried, self.hits + hits
        if wrong:
            self.wrong.append(wrong)
        if wrong or self.tried // 100 > hundreds:
            print(f"{self}{wrong and f': {wrong}'}", flush=True)

    def __str__(self):
        return (
            f"{self.where}: {self.tried} tried, {self.hits} hit a launch, "
            f"{len(self.wrong)} broke the next"
        )


def in_script(tries, seed):
    """The tally of a script's interrupts."""
    rnd, tally = random.Random(seed), Tally("script")
    while tally.tried < tries:
        prepare(rnd)
        send = os.kill, (os.getpid(), signal.SIGINT)
        alarms = [threading.Timer(moment, *send) for moment in moments(rnd)]
        hits = interrupted(rnd, alarms)
        tally.add(len(alarms), hits, works(rnd.choice(SIZES)))
    return tally


def in_kernel(tries, seed):
    """The same, with the button's own message to a kernel that runs cells; also the longest
    output of an interrupt. IPython that was interrupted itself names neither cell nor tpviz."""
    from jupyter_client.manager import start_new_kernel

    rnd, tally, longest = random.Random(seed), Tally("kernel"), ""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        here = os.path.dirname(os.path.abspath(__file__))
        cell(
            client,
            f"import sys; sys.path.insert(0, {here!r})\n"
            "import random, tpviz as tv, stress_interrupts as s\n"
            f"rnd = random.Random({seed})",
        )
        while tally.tried < tries:
            cell(client, "s.prepare(rnd)")
            at, hits = (0, *moments(rnd)), 0
            for before, moment in itertools.pairwise(at):
                stopped, text = stopped_launch(manager, client, rnd, moment - before)
                ours = text if "Cell In" in text or "tpviz" in text else ""
                hits, longest = hits + stopped, max(longest, ours, key=line_count)
            time.sleep(0.05)  # an interrupt may reach the kernel a moment after its cell has ended
            failed, text = cell(
                client, f"assert not (found := s.works({rnd.choice(SIZES)})), found"
            )
            tally.add(len(at) - 1, hits, text if failed else "")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return tally, longest


def stopped_launch(manager, client, rnd, seconds):
    """A cell with a launch, interrupted after so long: whether it was stopped, and its output."""
    asked = client.execute(f"tv.launch(s.busy, world_size={rnd.choice(SIZES)})")
    # Between two cells a kernel drops the next one when it is interrupted.
    while client.get_iopub_msg(timeout=120)["msg_type"] != "execute_input":
        pass
    time.sleep(seconds)
    manager.interrupt_kernel()
    return output_of(client, asked)


def cell(client, code):
    """Run a cell to its end."""
    return output_of(client, client.execute(code))


def output_of(client, asked):
    """Of the cell with this message id: whether it ended in an error, its output and its error.

    The kernel's "idle" ends it: of an interrupt just after the cell's last line, ipykernel sends no
    reply.
    """
    failed, text = False, ""
    while True:
        message = client.get_iopub_msg(timeout=120)
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != asked:
            continue
        if kind == "error":
            failed, text = True, text + "\n".join(content["traceback"]) + "\n"
        elif kind == "stream":
            text += content["text"]
        elif kind == "status" and content["execution_state"] == "idle":
            return failed, text


def line_count(text):
    """How many lines it is."""
    return len(text.splitlines())


def main(tries=1000, seed=0):
    """Both, with a line each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    script = in_script(tries, seed)
    print(script, flush=True)
    tv.shutdown()
    kernel, longest = in_kernel(tries, seed)
    lines = line_count(longest)
    print(f"{kernel}; an interrupt shows at most {lines} lines")
    if lines > 3:
        print("  ", longest)
    return 1 if script.wrong or kernel.wrong or lines > 3 else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
