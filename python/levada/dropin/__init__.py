"""Loaders of other systems by their own names and signatures, made of levada's pieces: a program changes one import.

swift: ms-swift's DataLoaderDispatcher. bridge: Megatron-Bridge's broadcast_data_across_tp.
"""
