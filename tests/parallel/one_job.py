"""Cases that share a job on ranks."""

import tpviz as tv


def each(fn, cases, world_size=4):
    """{case: what ``fn(*case)`` gives on each rank}, all cases one after another in one job, which
    keeps its groups."""

    def job():
        return [fn(*case) for case in cases]

    ranks = tv.launch(job, world_size=world_size, progress=False, timeout=150)
    return dict(zip(cases, zip(*ranks), strict=True))
