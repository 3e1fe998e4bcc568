"""Labels of packed rows: relates labels to tokens, and masks them at the boundaries between samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from levada.base.errors import InvalidArgument

NO_LOSS = -100
"""The label that means no loss, as in torch's cross_entropy and in transformers."""


def mask_first_labels(labels: Any, tokens: Any, lengths: Sequence[int], begins: Sequence[int], *, may_be_next: bool) -> None:
    """Sets the first label of each sample in a row to -100 if the labels are the tokens at the same positions.

    A causal language model compares each such label with the prediction at the previous position, which for the first
    label belongs to another sample. Other labels, such as those of token classification, stay as they are.

    labels, tokens: numpy arrays [1, n]. lengths, begins: lengths and start positions of the samples in the row.
    may_be_next: whether labels may be the next tokens. Raises InvalidArgument if they are the next tokens but may not
    be, or if their dtype cannot hold -100.
    """
    import numpy as np

    spans = [(begin, begin + length) for begin, length in zip(begins, lengths, strict=True) if length]
    places = np.concatenate([np.arange(begin, end) for begin, end in spans]) if spans else np.arange(0)
    places = places[labels[0, places] >= 0]
    if not len(places):
        return
    if (labels[0, places] != tokens[0, places]).any():
        if not may_be_next:
            _expect_not_next(labels[0], tokens[0], np.setdiff1d(places, [end - 1 for _, end in spans]))
        return
    _expect_signed(labels)
    labels[0, [begin for begin, _ in spans]] = NO_LOSS


def shift_labels(labels: Any, bounds: Sequence[int]) -> Any:
    """Returns the labels at the positions that predict them: each label moves to the previous position, and the last
    position of a segment gets -100.

    labels: a numpy array [1, n, ...]. bounds: the starts of the segments, followed by n. Raises InvalidArgument if the
    dtype of the labels cannot hold -100.
    """
    import numpy as np

    _expect_signed(labels)
    shifted = np.full_like(labels, NO_LOSS)
    shifted[:, :-1] = labels[:, 1:]
    ends = np.asarray(bounds[1:], np.intp)
    shifted[:, ends[ends > 0] - 1] = NO_LOSS
    return shifted


def _expect_signed(labels: Any) -> None:
    if labels.dtype.kind in "ub":
        raise InvalidArgument(f"labels are {labels.dtype.name}, which cannot be -100; use int64")


def _expect_not_next(labels: Any, tokens: Any, places: Any) -> None:
    if len(places) and (labels[places] == tokens[places + 1]).all():
        raise InvalidArgument(
            "the labels of samples are their next tokens, but `labels` belong to the token at the same position, as in "
            "transformers; pass the next tokens as `shift_labels`"
        )
