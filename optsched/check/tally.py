"""What the steps of one batch add up to, what they take, and which limits they break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optsched.check.problem import Problem


@dataclass(slots=True)
class Tally:
    """The steps of one batch: how many, their tokens, KV tokens that decodes read, KV tokens that leave and come back.

    ``fills_ps`` is what prefill steps take beside their part of the non-attention time; ``surplus`` the tokens that
    decode steps run beyond one each, which breaks a rule.
    """

    problem: Problem
    prefills: int = 0
    decodes: int = 0
    surplus: int = 0
    prefill_tokens: int = 0
    read: int = 0
    fills_ps: int = 0
    left: int = 0
    back: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that run."""
        return self.prefill_tokens + self.decodes + self.surplus

    def prefill(self, count: int, cached: int, missing: int) -> str:
        """Count a prefill step of ``count`` of the ``missing`` tokens, and say what is wrong with it, if anything."""
        cost = self.problem.cost
        self.prefills += 1
        self.prefill_tokens += count
        self.fills_ps += cost.prefill_sq * (count**2 + 2 * cached * count) + cost.prefill_kv * cached + cost.prefill_req
        step = f"runs {count} tokens in a prefill step, "
        if count > missing:
            return f"{step}at most the {missing} tokens that exist and are not cached are allowed"
        if count < missing and not self.problem.chunked:
            return f"{step}but without chunked prefill all {missing} missing tokens must run"
        return ""

    def duration_ps(self, considered: int) -> int:
        """Return what a batch of these steps takes where the scheduler considers that many requests."""
        cost = self.problem.cost
        steps_ps = max(base + token * self.tokens for base, token in self.problem.pieces) + self.fills_ps
        steps_ps += cost.decode_kv * self.read + cost.decode_req * self.decodes
        link_ps = cost.swap_out_kv * self.left + cost.swap_in_kv * self.back
        hidden_ps = min(link_ps, steps_ps * cost.swap_overlap // 100)
        return steps_ps + link_ps - hidden_ps + cost.cpu_request * considered

    def broken_limits(self, runs: int) -> Iterator[str]:
        """Say which limits and rules a batch of these steps in ``runs`` runs breaks, memory aside."""
        limits = self.problem.limits
        if self.tokens > limits.batch_tokens:
            yield f"runs {self.tokens} tokens, at most {limits.batch_tokens} are allowed"
        if self.prefill_tokens > limits.prefill_tokens:
            yield f"runs {self.prefill_tokens} tokens in prefill steps, at most {limits.prefill_tokens} are allowed"
        if self.problem.runs is not None and runs > self.problem.runs:
            yield f"has {runs} runs, at most {self.problem.runs} are allowed"
        if not self.problem.hybrid and self.prefills and self.decodes:
            yield f"mixes {self.prefills} prefill and {self.decodes} decode steps, but hybrid batches are forbidden"
