"""Benchmarks: figures against the budgets of the design, never timed tests."""
