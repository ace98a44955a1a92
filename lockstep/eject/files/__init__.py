"""The files that `lockstep eject` copies: PPO, DQN and SAC without Lockstep. They are read and run as they are."""
