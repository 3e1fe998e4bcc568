"""The exception that ends a loop without ending its epoch."""


class PauseIteration(StopIteration):
    """Raised by what a DataLoader2 iterates: the loop ends, the epoch does not."""
