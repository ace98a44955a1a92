"""Policy classes of `RecurrentPPO` for `RecurrentPPO(MlpLstmPolicy, env)`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from lockstep.data import map_tree
from lockstep.modules import is_image
from lockstep_sb3.common.distributions import DiagGaussianDistribution, Distribution, make_proba_distribution
from lockstep_sb3.common.policies import NetworkPolicy
from lockstep_sb3.common.recurrent.type_aliases import RNNStates

State = dict[str, Tensor]
"""State of Lockstep's network by name, `{name: [B, H]}`."""


class RecurrentActorCriticPolicy(NetworkPolicy):
    """Policy and value function with an LSTM, for observations that are vectors.

    `lstm_actor` and `lstm_critic` are the LSTMs; the latter is None if the value function has none of its own.

    Methods take observations `[N, ...]` of B sequences, one after the other, with the states before them: tuples
    (hidden, cell) of tensors `[layers, B, size]`. Where `episode_starts` `[N]` is not 0, the state is reset.
    """

    def take_layers(self, network: Any, learner: Any) -> None:
        super().take_layers(network, learner)
        self.action_dist = make_proba_distribution(self.action_space)
        self.lstm_actor = network.encoder.memory
        self.lstm_critic = getattr(network.value_encoder, "memory", None)

    @property
    def lstm_hidden_state_shape(self) -> tuple[int, int, int]:
        """Shape (layers, 1, size) of the hidden state of one sequence."""
        names = [name for name in self.lstm_actor.initial_state() if name.startswith("h")]
        return len(names), 1, self.lstm_actor.output_size

    def forward(  # type: ignore[override]
        self, obs: Any, lstm_states: RNNStates, episode_starts: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, RNNStates]:
        """Return actions `[N, ...]`, values `[N, 1]`, log-probabilities `[N]`, and the states after them."""
        distribution, values, states = self._run(obs, lstm_states.pi, lstm_states.vf, episode_starts)
        actions = distribution.get_actions(deterministic)
        log_prob = distribution.log_prob(actions)
        return actions.reshape(-1, *(self.action_space.shape or ())), values, log_prob, states

    def get_distribution(
        self, obs: Any, lstm_states: tuple[Tensor, ...], episode_starts: Tensor
    ) -> tuple[Distribution, tuple[Any, ...]]:
        """Return the action distributions, and the state of the policy's LSTM after them."""
        distribution, _, states = self._run(obs, lstm_states, lstm_states, episode_starts)
        return distribution, states.pi

    def predict_values(self, obs: Any, lstm_states: tuple[Tensor, ...], episode_starts: Tensor) -> Tensor:
        """Return the values `[N, 1]`. The states are those of the LSTM that the value function reads."""
        return self._run(obs, lstm_states, lstm_states, episode_starts)[1]

    def evaluate_actions(
        self, obs: Any, actions: Tensor, lstm_states: RNNStates, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the values `[N, 1]`, the log-probabilities of `actions` `[N]` and the entropies `[N]`."""
        distribution, values, _ = self._run(obs, lstm_states.pi, lstm_states.vf, episode_starts)
        return values, distribution.log_prob(actions), distribution.entropy()

    def _run(
        self, obs: Any, pi: tuple[Tensor, ...], vf: tuple[Tensor, ...], episode_starts: Tensor
    ) -> tuple[Distribution, Tensor, RNNStates]:
        """Return action distributions, values and the states after them, with gradients."""
        if is_image(self.observation_space):
            raise ValueError(f"{type(self).__name__}: with images only predict is possible; call model.predict")
        num_sequences = pi[0].shape[1]
        starts = episode_starts.float().reshape(num_sequences, -1)
        sequences = map_tree(lambda leaf: leaf.reshape(num_sequences, -1, *leaf.shape[1:]), obs)
        state = {**_by_name(pi, ""), **(_by_name(vf, "vf_") if self.lstm_critic is not None else {})}

        inputs = []
        values = []
        # Step by step, since an episode may begin at any row.
        for t in range(starts.shape[1]):
            kept = 1.0 - starts[:, t : t + 1]
            state = {name: leaf * kept for name, leaf in state.items()}
            now = map_tree(itemgetter((slice(None), slice(t, t + 1))), sequences)
            outputs = self.network.forward_train({"obs": now, "state_in": state})
            inputs.append(outputs["action_dist_inputs"])
            values.append(outputs["vf_preds"])
            state = outputs["state_out"]
        states_pi = _in_layers(state, "")
        states_vf = _in_layers(state, "vf_") if self.lstm_critic is not None else states_pi
        distribution = self._distribution(torch.cat(inputs, 1).flatten(0, 1))
        return distribution, torch.cat(values, 1).reshape(-1, 1), RNNStates(states_pi, states_vf)

    def _distribution(self, inputs: Tensor) -> Distribution:
        """Return the distributions for the policy's outputs `[N, D]`."""
        if isinstance(self.action_dist, DiagGaussianDistribution):
            return self.action_dist.proba_distribution(*inputs.chunk(2, -1))
        return self.action_dist.proba_distribution(inputs)


class RecurrentActorCriticCnnPolicy(RecurrentActorCriticPolicy):
    """Policy with an LSTM for images."""


class RecurrentMultiInputActorCriticPolicy(RecurrentActorCriticPolicy):
    """Policy with an LSTM for observations that are dicts."""


def _by_name(states: tuple[Tensor, ...], prefix: str) -> State:
    """Return a state (hidden, cell) by the names of Lockstep's network."""
    named: State = {}
    for kind, layers in zip("hc", states):
        for number, layer in enumerate(layers):
            named[f"{prefix}{kind}_{number}" if number else f"{prefix}{kind}"] = layer
    return named


def _in_layers(state: Mapping[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
    """Return a state (hidden, cell) from that of Lockstep's network."""
    parts = []
    for kind in "hc":
        names = [name for name in state if name == f"{prefix}{kind}" or name.startswith(f"{prefix}{kind}_")]
        parts.append(torch.stack([state[name] for name in names]))
    return tuple(parts)


MlpLstmPolicy = RecurrentActorCriticPolicy
CnnLstmPolicy = RecurrentActorCriticCnnPolicy
MultiInputLstmPolicy = RecurrentMultiInputActorCriticPolicy
