"""`python -m levada.bench`: levada beside what it stands in for, in one run (bench/PERFORMANCE.md)."""
