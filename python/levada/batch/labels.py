"""Labels of packed rows: which token each belongs to, and that none crosses from one sample to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from levada.base.errors import InvalidArgument

NO_LOSS = -100
"""The label without a loss, as in torch's cross_entropy and in transformers."""


def mask_first_labels(labels: Any, tokens: Any, lengths: Sequence[int], begins: Sequence[int], *, may_be_next: bool) -> None:
    """Sets the first label of each sample in a row to -100 if labels are the tokens at the same places.

    A causal language model compares each such label with what the place before it predicts, which is another sample's. Other
    labels, as those of token classification, stay as they are.

    labels, tokens: numpy arrays [1, n]. lengths, begins: of the samples in the row. may_be_next: whether labels may be the next
    tokens. Raises InvalidArgument if they are and must not, or are of a dtype without -100.
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
    if labels.dtype.kind in "ub":
        raise InvalidArgument(f"labels are {labels.dtype.name}, which cannot be -100; give int64 ones")
    labels[0, [begin for begin, _ in spans]] = NO_LOSS


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


def _expect_not_next(labels: Any, tokens: Any, places: Any) -> None:
    if len(places) and (labels[places] == tokens[places + 1]).all():
        raise InvalidArgument(
            "the labels of samples are their next tokens, but `labels` belong to the token at the same place, as in "
            "transformers; give the next tokens as `shift_labels`"
        )
