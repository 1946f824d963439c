"""Tables as people have them: columns are found, labels read in their states, images found, two readings refused."""
