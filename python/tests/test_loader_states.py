"""States of a levada.DataLoader that are not what state_dict() returned."""

from __future__ import annotations

from typing import Any

import levada
import numpy as np
import pytest


@pytest.mark.parametrize("key", ["version", "epoch", "position", "order", "checksum"])
@pytest.mark.parametrize("value", [None, "5", 5.0, True, -1, 2**62, [5], {}, b"", np.zeros(2)], ids=repr)
def test_a_state_with_another_value_is_refused(key: str, value: Any) -> None:
    loader = levada.DataLoader(range(8), batch_size=2)
    with pytest.raises(levada.InvalidArgument, match="state of a DataLoader"):
        loader.load_state_dict({**loader.state_dict(), key: value})


def test_set_epoch_after_a_pass_that_max_steps_ended_is_the_epoch_of_the_state() -> None:
    loader = levada.DataLoader(range(10), batch_size=2, max_steps=2)
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4)
    loader.set_epoch(5)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (5, 0)
