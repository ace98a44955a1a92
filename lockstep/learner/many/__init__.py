"""Several learners that work as one: shares of the data, sums over learners, and the queue of update requests."""
