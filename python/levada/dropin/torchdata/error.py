"""The exception that ends a loop without ending its epoch."""


class PauseIteration(StopIteration):
    """Raised by the iterator under a DataLoader2 to end the loop but not the epoch."""
