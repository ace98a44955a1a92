"""Several learners as one: how rows are shared, how gradients meet, and how requests queue."""
