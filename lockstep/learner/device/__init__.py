"""Updates from data on the learner's device: each is one CUDA graph."""
