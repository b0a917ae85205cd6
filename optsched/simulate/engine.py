"""The plain engine: one replica, iteration by iteration, exact."""

from __future__ import annotations

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
        If the policy finds no batch while work remains and nobody else will arrive, or goes through more
        batches without a generated token than there are tokens in all (it would never end).
    """
    instance.require_feasible()
    requests = instance.requests
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_ps)
    jobs = {index: Job(requests[index], index, rank) for rank, index in enumerate(order)}
    patience = sum(request.input + request.output for request in requests)
    replica = Replica(instance.limits, instance.rules, instance.start_ps)
    batches: list[Batch] = []
    arrived = finished = fruitless = 0
    while finished < len(requests):
        if not (replica.waiting or replica.running):
            replica.now_ps = max(replica.now_ps, requests[order[arrived]].arrival_ps)
        while arrived < len(order) and requests[order[arrived]].arrival_ps <= replica.now_ps:
            replica.enqueue(jobs[order[arrived]])
            arrived += 1
        try:
            run, evict = policy.next_batch(replica)
        except NoBatchError:
            if arrived == len(order):
                raise
            replica.now_ps = requests[order[arrived]].arrival_ps
            continue
        for index in evict:
            job = jobs[index]
            job.evict()
            replica.drop(job)
            replica.enqueue(job)
        tokens = decodes = read = 0
        prefills: list[tuple[int, int]] = []
        generated = False
        for index, count in run:
            job = jobs[index]
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
                    finished += 1
        end = replica.now_ps + instance.cost.batch_ps(tokens, decodes, read, prefills)
        batches.append(Batch(replica.now_ps, end, tuple(run), tuple(evict)))
        replica.now_ps = end
        fruitless = 0 if generated else fruitless + 1
        if fruitless > patience:
            raise PolicyFailureError(run[0][0], end, f"no token was generated in {fruitless} batches")
    return Schedule(tuple(batches))
