"""`HerReplayBuffer`, a mark for `replay_buffer_class`: hindsight experience replay."""


class HerReplayBuffer:
    """Learn from goals that were reached; its kwargs are `n_sampled_goal` and `goal_selection_strategy`."""
