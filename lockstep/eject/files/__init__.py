"""Files that `lockstep eject` copies: PPO, DQN and SAC without Lockstep. Each file also runs as it is."""
