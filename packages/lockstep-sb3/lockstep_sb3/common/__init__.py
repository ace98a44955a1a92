"""The modules of `stable_baselines3.common`, by their names."""
