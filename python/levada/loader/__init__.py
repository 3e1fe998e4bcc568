"""The loader of data sets that are read by index."""
