"""The plain engine: one replica, iteration by iteration, exact."""

from __future__ import annotations

from optsched.model.feasibility import require_feasible
from optsched.model.instance import Instance
from optsched.model.schedule import Batch, Schedule
from optsched.simulate.replica import Job, NoBatchError, Policy, PolicyFailureError, Replica


def run_policy(instance: Instance, policy: Policy) -> Schedule:
    """Let a policy schedule an instance (InferMax, Algorithm 1, the outer loop).

    A batch starts when the previous one ends; when nothing can run, at the next arrival.

    Raises
    ------
    InfeasibleInstanceError
        If no schedule exists.
    PolicyFailureError
        If the policy finds no batch while work remains and nobody else will arrive, goes through more batches
        without a generated token than there are tokens in all (it would never end), or answers what cannot
        be followed: a batch of no run, an eviction without KV, tokens that do not exist. Whether it keeps the
        instance's limits is for the checker to say.
    """
    require_feasible(instance)
    requests = instance.requests
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
    present: dict[int, Job] = {}
    patience = sum(request.input + request.output for request in requests)
    replica = Replica(instance.limits, instance.rules, instance.start_ps)
    batches: list[Batch] = []
    arrived = finished = fruitless = 0
    while finished < len(requests):
        if not (replica.waiting or replica.running):
            replica.now_ps = max(replica.now_ps, requests[order[arrived]].arrival_ps)
        while arrived < len(order) and requests[order[arrived]].arrival_ps <= replica.now_ps:
            index = order[arrived]
            present[index] = Job(requests[index], index, arrived)
            replica.enqueue(present[index])
            arrived += 1
        try:
            run, evict = policy.next_batch(replica)
        except NoBatchError:
            if arrived == len(order):
                raise
            replica.now_ps = requests[order[arrived]].arrival_ps
            continue
        somebody = next(iter(present))
        if not run:
            raise PolicyFailureError(somebody, replica.now_ps, "the policy's batch runs nothing")
        for index in evict:
            job = present.get(index)
            if job is None or not job.cached:
                reason = f"the policy evicts request {index}, which holds no KV"
                raise PolicyFailureError(index if job else somebody, replica.now_ps, reason)
            job.evict()
            replica.drop(job)
            replica.enqueue(job)
        tokens = decodes = read = 0
        prefills: list[tuple[int, int]] = []
        generated = False
        for index, count in run:
            job = present.get(index)
            if job is None or not 1 <= count <= job.missing:
                missing = 0 if job is None else job.missing
                reason = f"the policy runs {count} tokens of request {index}, which has {missing} to run"
                raise PolicyFailureError(index if job else somebody, replica.now_ps, reason)
            tokens += count
            if job.decoding:
                decodes += 1
                read += job.cached
            else:
                prefills.append((count, job.cached))
                if job.cached == 0:
                    replica.admit(job)
            if job.run(count):
                generated = True
                if job.finished:
                    replica.drop(job)
                    del present[index]
                    finished += 1
        end = replica.now_ps + instance.cost.batch_ps(tokens, decodes, read, prefills)
        batches.append(Batch(replica.now_ps, end, tuple(run), tuple(evict)))
        replica.now_ps = end
        fruitless = 0 if generated else fruitless + 1
        if fruitless > patience:
            raise PolicyFailureError(run[0][0], end, f"no token was generated in {fruitless} batches")
    return Schedule(tuple(batches))
