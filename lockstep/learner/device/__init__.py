"""Updates whose data is already on the learner's device, captured as CUDA graphs."""
