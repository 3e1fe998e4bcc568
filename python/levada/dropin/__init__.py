"""Drop-in replacements for loaders of other systems, with the same names and signatures, implemented with Levada.

areal: AReaL's data manager. bridge: Megatron-Bridge's broadcast_data_across_tp. fairscale: its reduce-scatter bucketer.
megatron: Megatron-LM's sequence packing. swift: ms-swift's DataLoaderDispatcher. torchdata: DataLoader2 and its reading
services.
"""
