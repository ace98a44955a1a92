"""Exact resume of a run whose policy remembers: the memory of each environment is part of the checkpoint."""

from trainer_tools import hashes, learned, run_in

MODEL = {"rl_module": {"model_config": {"recurrent": "lstm", "recurrent_size": 4, "max_seq_len": 8}}}


def test_n_and_n_more_from_the_checkpoint_are_2n_to_the_last_bit(folder):
    whole = run_in(folder / "whole", "ppo", 512, **MODEL)
    half = run_in(folder / "halves", "ppo", 256, **MODEL)
    assert learned(half) != learned(whole)
    state = half.train_collector.get_state()["memory"]
    assert any(leaf.any() for leaf in state["state"].values())
    resumed = run_in(folder / "halves", "ppo", 512, **MODEL)
    assert resumed.train_collector is not half.train_collector
    assert hashes(resumed) == hashes(whole)


def test_evaluation_changes_nothing_in_a_run_that_remembers(folder):
    with_evaluation = run_in(folder / "with", "ppo", 256, **MODEL)
    without = run_in(folder / "without", "ppo", 256, **MODEL, evaluation={"evaluation_interval": 0})
    assert learned(with_evaluation) == learned(without)
