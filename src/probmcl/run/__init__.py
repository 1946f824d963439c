"""One resumable training run, from prepared data to a finished run folder."""
