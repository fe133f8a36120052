"""Many calls that each run a job on ranks, with one launch for each kind of ranks.

    together(lambda s: tv.run(s, W), [tv.Megatron(tp=2), tv.T3(tp=2)])     # {strategy: trace}

A tiny job takes less than what is around it: making and leaving groups, putting the ranks back as
they were. The jobs run one after another, on groups that those of one mesh share.
"""

import gc
import pickle
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import cloudpickle

import tpviz as tv

_LAUNCH = "tpviz.ranks.launch._shown"


class _Job(BaseException):
    """What a call would launch: the kind of ranks, and the function with its arguments as bytes."""


def together(call: Callable[[Any], Any], cases: Iterable[Any]) -> dict[Any, Any]:
    """{case: what ``call(case)`` returns}.

    A call launches just once, and is made twice: to see its job, and to be given the results.
    """
    jobs, returned = {}, {}
    for case in dict.fromkeys(cases):
        try:
            with patch(_LAUNCH, _stop):
                returned[case] = call(case)  # it remembers, and launches nothing
        except _Job as job:
            key, payload = job.args
            jobs.setdefault(key, {})[case] = payload
    for (world_size, backend, device, _), payloads in jobs.items():
        ranks = tv.launch(
            _each,
            list(payloads.values()),
            world_size=world_size,
            backend=backend,
            device=device,
            timeout=None,
            progress=False,
        )
        for case, results in zip(payloads, zip(*ranks)):
            with patch(_LAUNCH, lambda *_, results=results: list(map(pickle.loads, results))):
                returned[case] = call(case)
    return {case: returned[case] for case in cases}


def each(
    fn: Callable[..., Any], cases: Sequence[tuple[Any, ...]], world_size: int = 4
) -> dict[Any, tuple[Any, ...]]:
    """{case: what ``fn(*case)`` gives on each rank}, all cases one after another in one job, which
    keeps its groups."""

    def job():
        return [fn(*case) for case in cases]

    ranks = tv.launch(job, world_size=world_size, progress=False, timeout=150)
    return dict(zip(cases, zip(*ranks), strict=True))


def _stop(key, payload, *_):
    raise _Job(key, payload)


def _each(payloads):
    """On a rank: the pickled result of each job."""
    results = []
    for payload in payloads:
        function, args, kwargs = cloudpickle.loads(payload)
        results.append(cloudpickle.dumps(function(*args, **kwargs)))
        del function, args, kwargs
        gc.collect()  # a program may hold itself in a circle
    return results


def verifications(cases: tuple[tuple[tv.Strategy, tv.GPT], ...], steps: int = 2) -> dict[Any, Any]:
    """{(strategy, workload): `tv.verify`} of a tuple of them, made once."""
    found = _verifications(cases, steps)
    if isinstance(found, Exception):
        raise found
    return found


@cache
def _verifications(cases, steps):
    try:
        return together(lambda case: tv.verify(case[0], case[1], steps, progress=False), cases)
    except Exception as error:  # for each test that asks, but not made anew for each
        return error
