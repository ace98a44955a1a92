"""`RecurrentPPO` of sb3-contrib: PPO with an LSTM."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.modules import is_image
from lockstep.tracking import CollectStatsBase, TrainingStats
from lockstep.trainer import OnpolicyTrainer
from lockstep_sb3.algorithms import PPO

LSTM_DEFAULTS = {"bias": True, "dropout": 0.0, "bidirectional": False, "proj_size": 0}
"""Keywords of `torch.nn.LSTM` without a counterpart, with the values that ask for what happens anyway."""


class SequenceTrainer(OnpolicyTrainer):
    """Trainer whose minibatches of sequences have about `steps_per_minibatch` environment steps.

    Sequences are pieces of episodes of at most `max_seq_len` steps, so the number of them that makes up a minibatch
    depends on the episodes of the rollout.
    """

    steps_per_minibatch: int
    max_seq_len: int

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Update the policy with the rollout in `buffer`: `repeat_per_collect` passes in minibatches."""
        store: Any = self.buffer
        num_sequences = count_sequences(store.ends(), self.max_seq_len)
        num_minibatches = max(1, round(len(store) / self.steps_per_minibatch))
        self.batch_size = max(1, round(num_sequences / num_minibatches))
        with warnings.catch_warnings():
            # Sequences are not as many as a program could choose, and each pass leaves out others.
            warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ rows are left out of each pass")
            return super().policy_update_fn(collect_stats)


def count_sequences(ends: np.ndarray, max_seq_len: int) -> int:
    """Return the number of sequences in a rollout whose episodes end at the rows of `ends`, bool `[T, B]`."""
    ends = ends.copy()
    ends[-1] = True
    number = 0
    for column in ends.T:
        lengths = np.diff(np.flatnonzero(column), prepend=-1)
        number += int(np.sum(-(-lengths // max_seq_len)))  # rounded up
    return number


@dataclass(eq=False, repr=False)
class RecurrentPPO(PPO):
    """Proximal policy optimization with an LSTM (Pleines et al. 2022, https://arxiv.org/abs/2205.11104).

    The LSTM is between the features of the observation and the layers of `net_arch`. A minibatch has about
    `batch_size` steps, in sequences of at most that length.
    """

    policy_package = "ppo_recurrent"
    takes_own_policies = False
    shares_layers = False
    policy_names = ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy")

    n_steps: int = 128
    batch_size: int = 128

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        lstm_kwargs = dict(kwargs.pop("lstm_kwargs", None) or {})
        for name, value in lstm_kwargs.items():
            if LSTM_DEFAULTS.get(name, not value) != value:
                self.refuse(f"lstm_kwargs={{{name!r}: {value!r}}}", "leave it out")
        is_shared = bool(kwargs.pop("shared_lstm", False))
        has_own = bool(kwargs.pop("enable_critic_lstm", True))
        if is_shared and has_own:
            self.refuse("shared_lstm=True with enable_critic_lstm=True", "set enable_critic_lstm=False")
        memory_in = "both"
        if not has_own:
            memory_in = "shared" if is_shared else "policy"

        super().set_options(config, kwargs)
        memory = {"recurrent": "lstm", "memory_below_hiddens": True, "memory_in": memory_in}
        memory |= {"recurrent_size": kwargs.pop("lstm_hidden_size", 256)}
        memory |= {"recurrent_layers": kwargs.pop("n_lstm_layers", 1)}
        config.rl_module(model_config={**memory, "vf_share_layers": False, "max_seq_len": self.max_seq_len})

    @property
    def max_seq_len(self) -> int:
        """Largest number of steps in a sequence, through which the gradient of the LSTM flows."""
        # One more than a rollout has, so that its last observation, of which only the value is needed, belongs to the
        # sequence before it.
        return min(self.batch_size, self.n_steps + 1)

    def make_config(self) -> Any:
        config: Any = super().make_config()
        if is_image(self.observation_space):
            # The layers of `net_arch` are above the LSTM, and only those of the convolutions below it.
            model = config.rl_module.model_config
            config.rl_module(model_config={"image_hiddens": model.image_hiddens[:1]})
        return config

    def make_trainer(self, **options: Any) -> SequenceTrainer:
        options["step_per_collect"] = self.n_steps * self.n_envs
        trainer = SequenceTrainer(repeat_per_collect=self.config.training.num_epochs, batch_size=None, **options)
        trainer.steps_per_minibatch = self.batch_size
        trainer.max_seq_len = self.max_seq_len
        return trainer

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Return actions for one observation or a batch of observations, and the state of the LSTM after them.

        Args:
            observation: The observation or observations.
            state: State that the last call returned, `(hidden, cell)` with arrays `[layers, B, size]`. None begins
                episodes.
            episode_start: Whether each observation begins an episode, bool `[B]`. The state is reset there.
            deterministic: Take the most likely actions.
        """
        batch, is_single = self.as_batch(observation)
        rows = next(iter(batch.values())) if isinstance(batch, dict) else batch
        num_rows = 1 if is_single else len(rows)
        memory = self.lockstep.acting[DEFAULT_MODULE_ID].get_initial_state(num_rows)
        names = [layer_names(kind, self._num_layers) for kind in ("h", "c")]
        if state is not None:
            shape = (self._num_layers, num_rows, memory["h"].shape[-1])
            starts = np.zeros(num_rows, bool) if episode_start is None else np.asarray(episode_start, bool).reshape(-1)
            shapes = [np.shape(part) for part in state]
            if shapes != [shape, shape]:
                raise ValueError(
                    f"predict got a state with the shapes {shapes}; it must be the one that predict returned for "
                    f"{num_rows} observations, two arrays of shape {shape}, or None"
                )
            for part, part_names in zip(state, names):
                for layer, name in zip(part, part_names):
                    memory[name] = np.where(starts[:, None], 0.0, layer).astype(np.float32)

        actions, after = self.lockstep.compute_actions(batch, memory, explore=not deterministic)
        new_state = tuple(np.stack([after[name] for name in part_names]) for part_names in names)
        return (actions[0] if is_single else actions), new_state

    @property
    def _num_layers(self) -> int:
        """Number of layers of the LSTM."""
        number: int = self.config.rl_module.model_config.recurrent_layers
        return number


def layer_names(kind: str, num_layers: int) -> list[str]:
    """Return the names of one part of the state, "h" or "c", in each layer of Lockstep's LSTM."""
    return [kind, *[f"{kind}_{number}" for number in range(1, num_layers)]]
