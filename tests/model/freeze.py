"""The last module that a fork server preloads: the garbage collectors of its children skip all that it has imported, and so
leave its pages shared."""

import gc

gc.collect()
gc.freeze()
