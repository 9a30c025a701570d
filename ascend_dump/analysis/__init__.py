"""What is computed from records: statistics, comparison, overflow analysis."""
