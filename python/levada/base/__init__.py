"""Code shared by all packages: exceptions, optional packages, the end of processes."""
