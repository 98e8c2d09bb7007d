"""What steps and evaluations return."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class OuterStep:
    """An outer step, which averaged the replicas (`local_steps` of ``init()``).

    ``number`` counts from 1, for each ``fragment`` from 0.  ``grad_norm`` is the norm of the mean
    outer gradient, 0 with ``Mean()``, and ``drift`` the root mean square of the distances of the
    replicas from the outer weights before it.  ``message_bytes`` are those of a replica's outer
    gradient, as hosts send it.
    """

    number: int
    grad_norm: float
    drift: float
    fragment: int = 0
    message_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step, equal on all ranks.

    ``loss`` is the mean over ``count``, the sum of the counts that the loss function returned, and
    ``grad_norm`` the norm of the mean gradient before clipping.  With replicas, ``grad_norm`` is
    the root mean square of their norms, and ``outer`` the outer step after this step, if there was
    one.
    """

    step: int
    loss: float
    grad_norm: float
    count: int
    hits: int
    seconds: float
    outer: OuterStep | None = None

    @property
    def accuracy(self) -> float:
        """Hits divided by count."""
        return self.hits / self.count if self.count else float("nan")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, equal on all ranks: the mean ``loss`` over ``count``."""

    loss: float
    count: int
    hits: int

    @property
    def accuracy(self) -> float:
        """Hits divided by count."""
        return self.hits / self.count if self.count else float("nan")

    def __str__(self):
        return f"loss {self.loss:.6f}" + (f", accuracy {self.accuracy:.4f}" if self.hits else "")
