"""The end and the counts of a feed's pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class End:
    """How a pass has ended. The causes "exhausted", "steps" (max_steps), "stopped" (request_stop()) and "failed" are the
    same on every rank. "left": this rank left its loop; "abandoned": another rank had left before."""

    cause: str
    step: int
    """The number of complete steps."""
    rank: int
    """The reader whose data ended or failed, or the rank that asked for the stop or left."""
    message: str


@dataclass(frozen=True)
class Totals:
    """Counts of a step over all data-parallel ranks, without the padding of a last batch. Tensors are counted by their
    names, at the top of a batch and in each dict within it."""

    samples: int
    """Samples, or the rows of an iterable's batches: the extent of the first tensor along dim 0."""
    tokens: int | None
    """Positions of `tokens`, or else of `input_ids`; None without such a tensor."""
    labels: int | None
    """Positions with a loss: those whose `loss_mask` is not 0; or else the `shift_labels`, or else the `labels`, that are
    not negative. None without such a tensor, and for `labels` of the shape of `input_ids` whose rows begin with a label:
    causal models of transformers leave that one out, other models do not."""


@dataclass(frozen=True)
class FeedStats:
    """Counts of a rank's pass of a feed."""

    batches: int = 0
    samples: int = 0
    """Samples of the batches, without padding. For an iterable without balance they are its rows with divide="split" and
    batch_size=, and otherwise its items. With `max_cp` a sample counts at the first rank that shares it."""
    bytes: int = 0
    """Bytes of the batches."""
    copied_batches: int = 0
    bytes_sent: int = 0
    """Bytes that this rank has sent as a reader."""
    bytes_read: int = 0
    """Bytes that this rank has read from its source."""
    seconds: float = 0.0
    """Seconds of the pass."""
    waited_seconds: float = 0.0
    """Seconds that next() waited for batches."""
    taken_seconds: float = 0.0
    """Seconds that next() took to get batches from the engine, including those that it waited."""
