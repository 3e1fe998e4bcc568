"""How a feed's pass ended, and its counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class End:
    """How a pass ended. The causes "exhausted", "steps" (max_steps), "stopped" (request_stop()) and "failed" are the
    same on every rank. "left" means that this rank left its loop; "abandoned" means that another rank had left
    before."""

    cause: str
    step: int
    """Number of complete steps."""
    rank: int
    """The reader whose data ended or failed, or the rank that requested the stop or left."""
    message: str


@dataclass(frozen=True)
class Totals:
    """Counts of a step over all data-parallel ranks, without the padding of a last batch. Tensors are counted by name,
    at the top level of a batch and in each dict within it."""

    samples: int
    """Number of samples, or of rows of an iterable's batches: the size of dim 0 of the first tensor."""
    tokens: int | None
    """Number of positions in `tokens`, or else in `input_ids`. None without such a tensor."""
    labels: int | None
    """Number of positions with a loss: those whose `loss_mask` is not 0, or else those whose `shift_labels`, or else
    `labels`, are not negative. None without such a tensor, and for `labels` of the shape of `input_ids` whose rows
    begin with a label, because causal models of transformers leave that one out and other models do not."""


@dataclass(frozen=True)
class FeedStats:
    """Counts of one rank's pass of a feed."""

    batches: int = 0
    samples: int = 0
    """Number of samples in the batches, without padding. For an iterable without balance: its rows with divide="split"
    and batch_size=, otherwise its items. With `max_cp`, a sample counts only at the first rank that shares it."""
    bytes: int = 0
    """Number of bytes in the batches."""
    copied_batches: int = 0
    bytes_sent: int = 0
    """Number of bytes that this rank has sent as a reader."""
    bytes_read: int = 0
    """Number of bytes that this rank has read from its source."""
    seconds: float = 0.0
    """Duration of the pass in seconds."""
    waited_seconds: float = 0.0
    """Seconds that next() waited for batches."""
    taken_seconds: float = 0.0
    """Seconds that next() took to get batches from the engine, including the time that it waited."""
