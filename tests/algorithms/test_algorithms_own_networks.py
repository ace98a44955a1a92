"""A network of one's own that lacks what its algorithm needs is refused by algorithm, class and all names."""

import numpy as np
import pytest
import torch
from agent_games import BitGame, game_config
from algorithm_cases import ALGORITHM_CASES, OFF_POLICY, taking, where
from algorithm_tools import some_episodes, transitions
from gymnasium import spaces
from space_envs import SpaceEnv
from torch import nn

from lockstep import PPOConfig, get_config
from lockstep.algorithms import PPOLearner
from lockstep.data.actions import forbidden_rows
from lockstep.data.episode import SingleAgentEpisode
from lockstep.modules import MultiRLModuleSpec, RLModule, RLModuleSpec, wrap_module

PLAIN_VALUES = [name for name in taking("discrete") if not ALGORITHM_CASES[name].lacks]
"""algorithms that learn from the values that acting needs"""
OBS, BOX, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


class Plain(RLModule):
    def setup(self):
        self.layer = nn.Linear(3, 2)

    def _forward(self, batch):
        return {"action_dist_inputs": self.layer(batch["obs"])}


class Fixed(Plain):
    """Plays `BitGame`."""

    def setup(self):
        self.layer = nn.Linear(2, 2)


class OneHead(RLModule):
    """Both outputs are views of one layer's."""

    def setup(self):
        self.layer = nn.Linear(3, 3)

    def _forward(self, batch):
        out = self.layer(batch["obs"])
        return {"action_dist_inputs": out[..., :-1], "vf_preds": out[..., -1]}

    def compute_values(self, batch):
        return self._forward(batch)["vf_preds"]


class OnlyOutputs(OneHead):
    """Has no method for values alone."""

    compute_values = RLModule.compute_values


class WithoutValues(Plain):
    def compute_values(self, batch):
        return self.layer(batch["obs"]).sum(-1)


def config(algorithm, actions, module_class=Plain):
    spec = RLModuleSpec(module_class=module_class)
    return get_config(algorithm).environment(observation_space=OBS, action_space=actions).rl_module(rl_module_spec=spec)


@pytest.mark.parametrize(
    "algorithm, actions, missing",
    [
        (algorithm, {"Box": BOX, "Discrete": CHOICES}[kind], missing)
        for algorithm, case in ALGORITHM_CASES.items()
        for kind, missing in case.lacks.items()
    ],
)
def test_what_a_network_lacks_is_named_when_the_learner_is_built(algorithm, actions, missing):
    name = type(get_config(algorithm)).learner_class.__name__
    with pytest.raises(ValueError, match=rf"{name} needs what Plain .* does not have: {missing}; .*docs/learner.md"):
        config(algorithm, actions).build_learner()


@pytest.mark.parametrize("algorithm", taking("discrete"))
def test_a_network_that_does_not_learn_needs_no_more_than_acting_does(algorithm):
    specs = {"first": RLModuleSpec(), "others": RLModuleSpec(module_class=Fixed)}
    config = game_config(
        BitGame, type(get_config(algorithm)), rl_module={"rl_module_spec": MultiRLModuleSpec(rl_module_specs=specs)}
    )
    config.multi_agent(policies_to_train=["first"])
    config.env_runners(rollout_fragment_length=8, exploration=None)  # noise in weights needs the default network
    if config.is_off_policy:
        config.replay(capacity=64, learning_starts=0, update_per_step=0.125)
    else:
        config.training(train_batch_size=16, minibatch_size=None)
    trainer = config.build_trainer()
    module = trainer.policy.learner_group.learner.module["others"]
    before = module.layer.weight.clone()
    assert trainer.run().gradient_step > 0
    assert torch.equal(module.layer.weight, before)
    config.multi_agent(policies_to_train=["first", "others"])
    if ALGORITHM_CASES[algorithm].lacks:
        with pytest.raises(ValueError, match=r"needs what Fixed \(module 'others'\) does not have: value_outputs"):
            config.build_trainer()


@pytest.mark.parametrize("algorithm", PLAIN_VALUES)
def test_an_output_missing_for_the_loss_is_named_with_the_network(algorithm):
    learner = config(algorithm, CHOICES).build_learner()
    message = r"Learner needs what Plain.forward_train does not return: q_values \(it returns action_dist_inputs\)"
    with pytest.raises(ValueError, match=type(learner).__name__.removesuffix("Learner") + message):
        if algorithm in OFF_POLICY:
            learner.update_from_batch(transitions(CHOICES))
        else:
            learner.update_from_episodes(some_episodes(num_actions=2))


class Columned(OneHead):
    def _forward(self, batch):
        out = super()._forward(batch)
        return {**out, "vf_preds": out["vf_preds"].unsqueeze(-1)}


def test_values_of_another_shape_are_refused_with_the_network():
    with pytest.raises(ValueError, match=r"Columned gives values .* of the shape \[12, 1\]; it must be \[N\]"):
        config("ppo", CHOICES, Columned).build_learner().update_from_episodes(some_episodes(num_actions=2))


def test_a_network_is_named_by_its_import_path():
    named = config("ppo", CHOICES).rl_module(rl_module_spec=f"{__name__}:OneHead")
    assert named.rl_module.rl_module_spec == RLModuleSpec(module_class=OneHead)


@pytest.mark.parametrize("algorithm", where(lambda case: case.has_state_values))
@pytest.mark.parametrize("module_class", [WithoutValues, OnlyOutputs, OneHead])
def test_a_critic_needs_compute_values_or_vf_preds_and_either_is_enough(algorithm, module_class):
    learner = config(algorithm, CHOICES, module_class).build_learner()
    before = learner.module["default_policy"].layer.weight.detach().clone()
    results = learner.update_from_episodes(some_episodes(num_actions=2))["default_policy"]
    assert np.isfinite([results["vf_loss"], results["total_loss"]]).all()
    assert (learner.module["default_policy"].layer.weight != before).any()


def test_missing_state_values_are_named_before_advantages_are_computed():
    learner = config("ppo", CHOICES).build_learner()
    with pytest.raises(ValueError, match=r"PPOLearner needs what Plain.forward_train does not return: vf_preds"):
        learner.update_from_episodes(some_episodes(num_actions=2))


class PlainMasked(nn.Module):
    """Knows nothing of masks; would always take the first action."""

    def __init__(self, value_per_action=False):
        super().__init__()
        self.policy, self.value = nn.Linear(3, 4), nn.Linear(3, 1)
        nn.init.constant_(self.policy.bias, 0.0)
        self.policy.bias.data[0] = 5.0
        self.value_per_action = value_per_action

    def forward(self, obs):
        logits = self.policy(obs["observations"])
        return logits, logits if self.value_per_action else self.value(obs["observations"])


@pytest.mark.parametrize("algorithm, output", [("ppo", "vf_preds"), ("dqn", "q_values")])
def test_a_wrapped_network_respects_the_action_mask_everywhere(algorithm, output):
    obs = spaces.Dict({"observations": OBS, "action_mask": spaces.MultiBinary(4)})
    network = PlainMasked(value_per_action=algorithm == "dqn")
    module = wrap_module(network, obs, spaces.Discrete(4), ("action_dist_inputs", output))
    config = get_config(algorithm).environment(
        lambda: SpaceEnv(obs, spaces.Discrete(4))
    )  # raises on a forbidden action
    config.rl_module(rl_module_spec=module).env_runners(num_envs_per_env_runner=2)
    config.evaluation(evaluation_duration=4)
    if algorithm == "ppo":
        config.training(train_batch_size=64, minibatch_size=32)
    else:
        config.training(train_batch_size=32, epsilon=0.5).replay(learning_starts=32)
    info = config.reporting(total_steps=256).build_trainer().run()
    assert info.gradient_step > 0
    assert info.test_episode >= 4


@pytest.mark.parametrize(
    "space, actions, masks, expected",
    [
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 0]], [[1, 0, 0, 0, 1], [1, 1, 0, 1, 1]], [False, True]),
        (spaces.MultiBinary(2), [[1, 0], [0, 1]], [[1, 0], [1, 0]], [False, True]),
        (
            spaces.Tuple((BOX, spaces.Discrete(3, start=4), spaces.MultiBinary(1))),
            [[0.3, 0.1, 2, 0], [0.3, 0.1, 2, 1], [0.3, 0.1, 1, 1]],
            [[0, 0, 1, 0], [0, 0, 1, 0], [1, 0, 1, 1]],
            [False, True, True],
        ),
    ],
)
def test_a_forbidden_action_of_several_choices_is_found(space, actions, masks, expected):
    assert forbidden_rows(space, np.array(actions), np.int8(masks)).tolist() == expected


class Masked(RLModule):
    """Applies the mask of its observations itself, or forgets it."""

    forgets = False

    def setup(self):
        self.layer = nn.Linear(3, 5)

    def _forward(self, batch):
        out, mask = self.layer(batch["obs"]["observations"]), batch["obs"]["action_mask"]
        logits = out[..., :4] if self.forgets else out[..., :4].masked_fill(mask == 0, -1e9)
        return {"action_dist_inputs": logits, "vf_preds": out[..., 4], "q_values": logits}


class Forgetful(Masked):
    forgets = True


@pytest.mark.parametrize("algorithm", ["ppo", *PLAIN_VALUES])
@pytest.mark.parametrize("module_class", [Masked, Forgetful])
def test_actions_that_the_mask_forbids_cause_one_warning(algorithm, module_class, recwarn):
    obs = spaces.Dict({"observations": OBS, "action_mask": spaces.MultiBinary(4)})
    mask, actions = np.int8([[1, 1, 0, 0]] * 6 + [[0, 1, 1, 1]] * 2), np.int64([0, 1, 1, 0, 3, 1, 1, 0])
    episode = SingleAgentEpisode(
        observations=[{"observations": np.zeros(3, np.float32), "action_mask": row} for row in [*mask, mask[0]]],
        actions=list(actions if module_class.forgets else np.minimum(actions, 1) | (np.arange(8) > 5)),
        rewards=np.ones(8),
        terminated=True,
    )
    config = get_config(algorithm).environment(observation_space=obs, action_space=spaces.Discrete(4))
    learner = config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).build_learner()
    for _ in range(2):
        learner.update_from_episodes([episode])
    told = [str(each.message) for each in recwarn if "are forbidden by their action masks" in str(each.message)]
    assert len(told) == module_class.forgets
    assert all("2 of 8 actions" in text and "Does Forgetful apply the mask?" in text for text in told)


class Misspelled(PPOLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return self.masked_mean(fwd_out["vf_pred"], batch)


class Misread(PPOLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return self.masked_mean(batch["vf_preds"], batch)


@pytest.mark.parametrize("learner_class, name", [(Misspelled, "vf_pred"), (Misread, "vf_preds")])
def test_a_loss_that_reads_a_name_that_is_not_there_is_told_those_that_are(learner_class, name):
    config = PPOConfig().environment("CartPole-v1").training(learner_class=learner_class, train_batch_size=64)
    with pytest.raises(KeyError) as caught:
        config.build_trainer().run()
    text = str(caught.value)
    assert f"the loss of {learner_class.__name__} looks for {name!r} in vain (module 'default_policy')" in text
    assert "the outputs fwd_out are action_dist_inputs, vf_preds;" in text
    assert "the columns of the batch are obs, actions, action_logp, advantages, value_targets" in text
    assert "did you mean 'vf_preds'?" in text
