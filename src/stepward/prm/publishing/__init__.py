"""Cards, the data page, and the way to the Hugging Face Hub."""
