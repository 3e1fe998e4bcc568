"""The content of batches: classes, memory, devices, and balanced micro-batches."""
