"""Define the work of both sides of ``runner_speed.py``."""

NUM_RUNNERS = 2
NUM_ENVS = 8
STEPS_PER_ENV = 128
BATCH = NUM_RUNNERS * NUM_ENVS * STEPS_PER_ENV
MINIBATCH = 256
NUM_EPOCHS = 4
NETWORKS = {"64x64": (64, 64), "0.1 MB": (160, 160), "1 MB": (510, 510), "10 MB": (1610, 1610), "100 MB": (5110, 5110)}
"""two tanh layers whose weights, as float32, are about as large"""
