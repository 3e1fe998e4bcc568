"""Labels of packed rows: which token each belongs to, and that none crosses from one sample to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from levada.base.errors import InvalidArgument

NO_LOSS = -100
"""The label without a loss, as in torch's cross_entropy and in transformers."""


def mask_first_labels(labels: Any, tokens: Any, lengths: Sequence[int], begins: Sequence[int]) -> None:
    """Sets the first label of each sample in a row to -100: the place before it is another sample's.

    labels, tokens: numpy arrays [1, n, ...] and [1, n]; tokens may be None. lengths, begins: of the samples in the row. Raises
    InvalidArgument if the labels are the next tokens, which lie one place earlier, or of a dtype without -100.
    """
    import numpy as np

    if labels.dtype.kind in "ub":
        raise InvalidArgument(f"labels are {labels.dtype.name}, which cannot be -100; give int64 ones")
    if tokens is not None and labels.shape == tokens.shape:
        _expect_own_tokens(labels[0], tokens[0], lengths, begins)
    labels[0, np.asarray([begin for begin, length in zip(begins, lengths, strict=True) if length], np.intp)] = NO_LOSS


def shift_labels(labels: Any, bounds: Sequence[int]) -> Any:
    """Returns labels at the places that predict them: each moved to the place before it, -100 at the end of a segment.

    labels: a numpy array [1, n, ...]. bounds: where segments begin, and n.
    """
    import numpy as np

    shifted = np.full_like(labels, NO_LOSS)
    shifted[:, :-1] = labels[:, 1:]
    ends = np.asarray(bounds[1:], np.intp)
    shifted[:, ends[ends > 0] - 1] = NO_LOSS
    return shifted


def _expect_own_tokens(labels: Any, tokens: Any, lengths: Sequence[int], begins: Sequence[int]) -> None:
    import numpy as np

    has_loss = labels != NO_LOSS
    if (labels == tokens)[has_loss].all():
        return
    last = np.asarray([begin + length - 1 for begin, length in zip(begins, lengths, strict=True) if length], np.intp)
    has_loss[last] = False  # what follows the last token of a sample is not known
    places = np.flatnonzero(has_loss)
    if len(places) and (labels[places] == tokens[places + 1]).all():
        raise InvalidArgument(
            "the labels of samples are their next tokens, but `labels` belong to the token at the same place, as in "
            "transformers; give the next tokens as `shift_labels`"
        )
