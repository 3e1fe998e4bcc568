"""Code that all packages share: exceptions, optional packages, the end of processes."""
