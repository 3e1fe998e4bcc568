"""Loaders of other systems by their own names and signatures, made of Levada's pieces.

areal: AReaL's data manager. bridge: Megatron-Bridge's broadcast_data_across_tp. fairscale: its reduce-scatter bucketer.
megatron: Megatron-LM's sequence packing. swift: ms-swift's DataLoaderDispatcher. torchdata: DataLoader2 and its reading services.
"""
