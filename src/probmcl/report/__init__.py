"""Tables, plots and summaries of results."""
