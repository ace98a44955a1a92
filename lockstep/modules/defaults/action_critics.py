"""Critics `Q(s, a)`, and the default networks of SAC, TQC, TD3 and IQL, which contain critics."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK
from lockstep.data.groups import CRITIC, NO_GROUPS, Groups, PartView
from lockstep.data.trees import Tree
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.defaults.actor_critic import MemorylessEncoder, require_part
from lockstep.modules.defaults.transition_module import SequenceEncoder, TransitionModule
from lockstep.modules.encoders import Encoder, make_features
from lockstep.modules.layers import BatchedMLP, mask_logits
from lockstep.modules.memory import MemoryEncoder
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch
from lockstep.ops.distributions import SquashedGaussian


class ActionCritics(nn.Module):
    """`num_critics` networks that estimate the values of actions, evaluated together.

    For a Box, the actions are concatenated with the observation's features, and each critic has one output. For a
    Discrete space, each critic has one output per action. All critics share learned features (of images, or an encoder
    with memory); the layers above are separate. With `config.num_value_outputs` above 1, each value of a Box is that
    many quantiles.

    Args:
        observation_space, action_space: Spaces of the environment.
        config: Options of the networks.
        encoder: The policy's encoder. With `config.q_share_layers` the critics use and train its features.
        groups: Observation groups, of which the critics have "critic".
    """

    mlp_class = BatchedMLP
    """Class of the batched networks above the features."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig,
        encoder: Encoder | SequenceEncoder | None = None,
        groups: Groups = NO_GROUPS,
    ) -> None:
        super().__init__()
        action_dist = ActionDist(action_space)
        _, self.is_masked = action_dist.split_mask(observation_space)
        view = PartView(CRITIC, observation_space, groups)
        self.is_discrete = isinstance(action_space, spaces.Discrete)
        self.takes_pairs = config.symmetric
        """True if observations are pairs with their mirror images, of which critics take the first ones."""
        self.features: Any
        self.has_memory = config.has_memory
        """True if observations are `MemoryFeatures`, because the memories have run over the sequences before."""
        if config.has_memory and config.memory_in == "policy":
            self.features = MemorylessEncoder(view.space, replace(config, hiddens=()), view)
        elif config.has_memory:
            self.features = MemoryEncoder(view.space, config, view)
        elif config.q_share_layers and isinstance(encoder, Encoder):
            self.features = encoder.share_features()
        else:
            self.features = make_features(view.space, config)
        self.view = view

        num_actions = action_dist.noise_size
        num_inputs = self.features.output_size
        self.num_outputs = config.num_value_outputs
        if self.is_discrete:
            mlp_outputs = num_actions
        else:
            num_inputs += num_actions
            mlp_outputs = self.num_outputs

        self.hiddens = config.hiddens if config.critic_hiddens is None else config.critic_hiddens
        self.mlp = self.make_mlp(num_inputs, mlp_outputs, config)

    def make_mlp(self, num_inputs: int, num_outputs: int, config: ModelConfig) -> BatchedMLP:
        """Return the new batched networks above the features."""
        hidden_gain: float | None = None
        output_gain: float | None = None
        if config.orthogonal_init:
            hidden_gain = config.hidden_gain
            output_gain = config.value_gain
        return self.mlp_class(
            config.num_critics,
            num_inputs,
            self.hiddens,
            num_outputs,
            activation=config.activation,
            hidden_gain=hidden_gain,
            output_gain=output_gain,
        )

    def memories(self) -> dict[str, SequenceEncoder]:
        """Return the memory by the field of `MemoryFeatures` that it fills; empty without memory."""
        return {"critic_features": self.features} if self.has_memory else {}

    def forward(
        self, obs: Tree, actions: Tensor | None = None, *, frozen: bool = False, first_only: bool = False
    ) -> Tensor:
        """Return the values of K critics, `[K, N]` for a Box or `[K, N, A]` of all actions of a Discrete space.

        With M quantiles per value, they are `[K, N, M]`. Actions that a mask forbids have a very low value.

        Args:
            obs: Observations, or `MemoryFeatures`.
            actions: Actions `[N, A]` of a Box. Not used for a Discrete space.
            frozen: Send the gradient to the actions only.
            first_only: Run the first critic alone (K = 1).
        """
        if self.has_memory:
            features = require_part(obs.critic_features)
            if features.dim() == 3:  # sequences `[B, T, F]`, which the batched networks take as rows
                rows = obs.map(lambda leaf: leaf.flatten(0, 1))
                actions = None if actions is None else actions.flatten(0, 1)
                values = self(rows, actions, frozen=frozen, first_only=first_only)
                return values.unflatten(1, features.shape[:2])
        values = self.mlp(self.inputs_of(obs, actions, frozen=frozen), frozen=frozen, first_only=first_only)
        if not self.is_discrete:
            return values.squeeze(-1) if self.num_outputs == 1 else values
        if not self.is_masked:
            return values
        return mask_logits(values, (obs[0] if self.takes_pairs else obs)[ACTION_MASK])

    def inputs_of(self, obs: Tree, actions: Tensor | None = None, *, frozen: bool = False) -> Tensor:
        """Return the networks' input `[N, I]`: the observations' features and, for a Box, the actions `[N, A]`.

        Args:
            obs: Observations, or `MemoryFeatures`.
            actions: Actions of a Box.
            frozen: Send the gradient to the actions only.
        """
        if self.takes_pairs:
            obs = obs[0]
        if self.has_memory:
            inputs = require_part(obs.critic_features)
            inputs = inputs.detach() if frozen else inputs
        else:
            with torch.no_grad() if frozen else nullcontext():
                inputs = self.features(self.view(obs))
        inputs = inputs.to(self.mlp.weights[0].dtype)
        if self.is_discrete:
            return inputs
        if actions is None:
            raise ValueError("critics of a Box action space need actions; give a tensor [N, A]")
        return torch.cat([inputs, actions.to(inputs.dtype)], -1)


class ModuleWithCritics(TransitionModule):
    """Base class of the networks with a policy and critics `Q(s, a)`."""

    critics_class = ActionCritics
    """Class of the critics."""
    critics: ActionCritics | None
    """The critics; None if the network was built to act only."""

    def make_critics(self, config: ModelConfig) -> ActionCritics:
        """Return new critics. `ValueError` if they share the policy's features, and see other entries than it."""
        view = self.view_of(CRITIC)
        if config.q_share_layers and view.paths != self.policy_view.paths:
            raise ValueError(
                "q_share_layers=True lets critics use the policy's features, and their groups of observations differ: "
                f"{self.policy_view.in_words} and {view.in_words}. Set q_share_layers=False, or leave the groups out"
            )
        # Only if there are groups, since a user's class may not have the argument.
        groups: dict[str, Any] = {"groups": self.observation_groups} if self.observation_groups else {}
        return self.critics_class(self.observation_space, self.action_space, config, self.encoder, **groups)

    def memories(self) -> dict[str, SequenceEncoder]:
        critic_memories = {} if self.critics is None else self.critics.memories()
        return {**super().memories(), **critic_memories}

    def get_non_inference_attributes(self) -> list[str]:
        return ["critics"]


class DefaultSACModule(ModuleWithCritics):
    """Policy and critics (`ActionCritics`) of SAC, in separate networks.

    For a Box the policy is a tanh-squashed Gaussian in [-1, 1], whose standard deviations are outputs of the network
    with logarithms within `log_std_bounds` (Haarnoja et al. 2018, appendix C). For a Discrete space it is a
    Categorical. `ValueError` for other spaces.
    """

    def setup(self) -> None:
        is_box = isinstance(self.action_space, spaces.Box)
        if not is_box and not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"SAC needs a Box or Discrete action space, not {self.action_space}")
        config = ModelConfig.of(self.model_config)
        config = replace(
            config,
            squash_actions=is_box,
            free_log_std=False,
            vf_share_layers=config.memory_in == "both",  # the state value is not used
            dueling=False,
        )
        self.model_config = config
        super().setup()
        self.value_encoder = None
        self.value_head = None
        self.log_std_bounds = config.log_std_bounds if is_box else None
        self.critics = None
        if not self.inference_only:
            self.critics = self.make_critics(config)

    def value_view(self) -> PartView:
        """Return what the policy sees: there is no function of states."""
        return self.policy_view

    def _dist_inputs(self, batch: Batch, outputs: Tensor) -> Tensor:
        if self.log_std_bounds is None:
            return super()._dist_inputs(batch, outputs)
        mean, log_std = outputs.chunk(2, dim=-1)
        return torch.cat([mean, log_std.clamp(*self.log_std_bounds)], dim=-1)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"q_values"`.

        The values are `[K, N]` of `batch["actions"]`, or of a Discrete space `[K, N, A]` of all actions.
        """
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train if "actions" in batch else self._forward)
        q_values = require_part(self.critics)(batch["obs"], batch.get("actions"))
        return {**self._forward(batch), "q_values": q_values}

    def sample(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actions `[N, A]` of a Box that `noise` `[N, A]` selects, and their log density `[N]`.

        Both are differentiable with respect to the policy's parameters (reparametrisation).
        """
        inputs = self._forward(batch)["action_dist_inputs"].to(noise.dtype)
        dist = self.action_dist_cls.from_inputs(inputs)
        if not isinstance(dist, SquashedGaussian):
            raise TypeError(f"actions of {self.action_space} are not drawn by noise; use forward_train")
        return dist.sample_with_log_prob(noise)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the value `[N]` of the best action, without entropy: the smallest over the critics."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        critics = require_part(self.critics)
        if critics.is_discrete:
            best: Tensor = critics(batch["obs"]).amin(0).amax(-1)
            return best
        dist = self.action_dist_cls.from_inputs(self._forward(batch)["action_dist_inputs"])
        values: Tensor = critics(batch["obs"], dist.mode()).amin(0)
        return values


class DefaultTQCModule(DefaultSACModule):
    """SAC's policy, and critics of TQC, whose values are `num_value_outputs` quantiles.

    `ValueError` for action spaces other than Box.
    """

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"TQC needs a Box action space, not {self.action_space}")
        super().setup()

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the value `[N]` of the policy's mode, without entropy: the mean of all quantiles."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        dist = self.action_dist_cls.from_inputs(self._forward(batch)["action_dist_inputs"])
        values: Tensor = require_part(self.critics)(batch["obs"], dist.mode()).mean((0, -1))
        return values


class DefaultTD3Module(ModuleWithCritics):
    """Policy of TD3 and DDPG, `tanh(network)` in [-1, 1], and critics.

    `ValueError` for action spaces other than Box.
    """

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"a deterministic policy needs a Box action space, not {self.action_space}")
        config = self.make_policy()
        self.model_config = config
        self.critics = None
        if not self.inference_only:
            self.critics = self.make_critics(config)

    @property
    def action_dist_cls(self) -> ActionDist:
        """Distribution of deterministic actions, squashed by tanh."""
        if self._action_dist is None:
            self._action_dist = ActionDist(self.action_space, squashed=True, deterministic=True)
        return self._action_dist

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, A]`, and `"q_values"` `[K, N]` of `batch["actions"]`."""
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train if "actions" in batch else self._forward)
        q_values = require_part(self.critics)(batch["obs"], batch["actions"])
        return {**self._forward(batch), "q_values": q_values}

    def compute_actions(self, batch: Batch) -> Tensor:
        """Return the policy's actions `[N, A]` in [-1, 1], differentiable."""
        return self._forward(batch)["action_dist_inputs"].tanh()

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the first critic's value `[N]` of the policy's action."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        actions = self.compute_actions(batch)
        values: Tensor = require_part(self.critics)(batch["obs"], actions, first_only=True)[0]
        return values


class DefaultIQLModule(ModuleWithCritics):
    """Policy, state value and critics of IQL. `ValueError` for action spaces other than Box and Discrete.

    With `model_config.squash_mean`, which IQL's configuration sets, the mean of a Gaussian is squashed by tanh.
    """

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box | spaces.Discrete):
            raise ValueError(f"IQL needs a Box or Discrete action space, not {self.action_space}")
        config = ModelConfig.of(self.model_config)
        has_mean = isinstance(self.action_space, spaces.Box)
        self.model_config = replace(config, squash_mean=config.squash_mean and has_mean)
        super().setup()
        self.critics = None
        if not self.inference_only:
            self.critics = self.make_critics(self.model_config)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`, `"vf_preds"` `[N]` and `"q_values"`.

        The action values are `[K, N]` of `batch["actions"]`, or of a Discrete space `[K, N, A]` of all actions.
        """
        if self.has_raw_sequences(batch):
            return self.run_memories(batch, self.forward_train if "actions" in batch else self._forward)
        q_values = require_part(self.critics)(batch["obs"], batch["actions"])
        return {**super().forward_train(batch), "q_values": q_values}

    def get_non_inference_attributes(self) -> list[str]:
        return ["value_encoder", "value_head", "critics"]
