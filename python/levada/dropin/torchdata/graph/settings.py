"""Functions that seed the datapipes of a graph, under torchdata's module name."""

from levada.dropin.torchdata.graph import set_datapipes_seed, set_graph_random_seed

__all__ = ["set_datapipes_seed", "set_graph_random_seed"]
