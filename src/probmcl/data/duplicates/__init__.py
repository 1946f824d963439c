"""Images that are there twice: a fingerprint of each, candidates among them, and what confirms or dismisses a pair."""
