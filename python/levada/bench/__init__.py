"""`python -m levada.bench`: levada beside what it stands in for, in one run (bench/PERFORMANCE.md)."""

LOOP_PARTS = ("engine_us", "beyond_us", "tensors_us")
"""Of a step of the loop: until the engine had given the batch; all else; what torch takes to make such tensors."""
