"""Functions that search and change a graph of datapipes, under torchdata's module name."""

from levada.dropin.torchdata.graph import (
    DataPipe,
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    traverse_dps,
)

__all__ = ["DataPipe", "DataPipeGraph", "find_dps", "list_dps", "remove_dp", "replace_dp", "traverse_dps"]
