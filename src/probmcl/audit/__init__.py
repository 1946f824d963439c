"""What `check` reports and `train` refuses: duplicates, damage, splits, signatures and findings."""
