"""What a batch may hold: its classes, memory, devices, and balanced micro-batches."""
