"""Tables, figures and sentences for people, drawn from results."""
