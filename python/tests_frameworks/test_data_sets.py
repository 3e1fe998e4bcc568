"""levada.DataLoader over data sets of Hugging Face. Run by `script/check frameworks`."""

from __future__ import annotations

import random

import datasets as hf
import levada
import pytest


def test_a_data_set_of_hugging_face_is_read_by_number_with_its_transforms() -> None:
    dataset = hf.Dataset.from_dict({"tokens": [[i] * (i % 5 + 1) for i in range(30)], "n": list(range(30))})
    plain = levada.DataLoader(dataset.select_columns("n"), 4, True, seed=5)
    assert sorted(int(n) for batch in plain for n in batch["n"]) == list(range(30))
    noisy = dataset.with_transform(lambda rows: {"n": rows["n"], "r": [random.random() for _ in rows["n"]]})
    values = []
    for size in (3, 7):
        loader = levada.DataLoader(noisy, size, True, seed=5)
        values.append([pair for batch in loader for pair in zip(batch["n"].tolist(), batch["r"].tolist())])
    assert values[0] == values[1], "a transform that draws must not depend on the batch size"
    lengths = levada.DataLoader(dataset.with_format("torch"), 4, lengths="tokens", collate_fn=lambda rows: [row["n"] for row in rows])
    assert sum(lengths.global_tokens or 0 for _ in lengths) == sum(i % 5 + 1 for i in range(30))
    with pytest.raises(levada.InvalidArgument, match="pass one of them"):
        levada.DataLoader(hf.DatasetDict(train=dataset))
    with pytest.raises(levada.InvalidArgument, match=r"levada\.Feed"):
        levada.DataLoader(dataset.to_iterable_dataset())
