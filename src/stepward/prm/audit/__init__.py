"""What a dataset is worth: duplicates, contamination, and its labels against people's."""
