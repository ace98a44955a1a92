"""What the learners of several algorithms have in common: one class for each family of algorithms."""
