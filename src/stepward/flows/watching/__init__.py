"""What a person sees of a run: its bar, log, figures, and the list of runs."""
