"""pass@k, intervals, verdicts, difficulty and advantages: pure functions on numpy arrays, no torch."""
