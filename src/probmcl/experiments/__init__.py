"""Methods side by side on one protocol; what came of it as tables, a plot and a verdict."""
