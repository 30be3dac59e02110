# Chooses the next token from a row of logits.
from __future__ import annotations

from typing import Optional

import numpy as np


class Sampler:
    """Greedy at temperature 0; else one draw from the softmax of the kept candidates. Reproducible for one seed."""

    def __init__(self,
                 temperature: float = 0.0,
                 top_k: int = 0,
                 top_p: float = 1.0,
                 seed: Optional[int] = None,
                 min_p: float = 0.0):
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self._random = np.random.default_rng(seed)

    def choose(self, logits: np.ndarray) -> int:
        if self.temperature <= 0:
            return int(np.argmax(logits))
        scores = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scores, kind="stable")
        if self.top_k > 0:
            order = order[:self.top_k]
        weights = np.exp(scores[order] - scores[order[0]])
        weights /= weights.sum()
        if self.top_p < 1:
            # The smallest set whose probability reaches top_p; the best candidate always stays.
            kept = int(np.searchsorted(np.cumsum(weights), self.top_p)) + 1
            order, weights = order[:kept], weights[:kept] / weights[:kept].sum()
        if self.min_p > 0:
            keep = weights >= self.min_p * weights[0]
            order, weights = order[keep], weights[keep] / weights[keep].sum()
        return int(self._random.choice(order, p=weights))
