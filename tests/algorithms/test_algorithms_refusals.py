"""What a configuration, or the learner that it builds, cannot be is refused with the words that help."""

import numpy as np
import pytest
import torch
from algorithm_cases import OFF_POLICY, OFFLINE, class_of, taking, where
from algorithm_tools import BOX, TWO, of_two_modules, small_config, transitions, two_specs
from gymnasium import spaces

from lockstep import (
    A2CConfig,
    BCConfig,
    Collector,
    DQNConfig,
    OfflineTrainer,
    PPOConfig,
    SACConfig,
    SampleBatch,
    get_config,
)
from lockstep.algorithms.ppo import PPOLearner
from lockstep.modules import DefaultActorCriticModule, MultiRLModuleSpec, RLModule, RLModuleSpec, wrap_module
from lockstep.replay import ReplayBuffer

MOVE, SEVERAL = spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 2])
NO_ACTIONS, NO_CHOICES = (spaces.Text(3), spaces.Dict(a=spaces.Text(2))), (MOVE, SEVERAL, spaces.MultiBinary(3))
SAMPLED = [class_of(name) for name in (*OFF_POLICY, *OFFLINE)]
"""classes of what learns from samples of a replay buffer or of data"""
VALUES = [class_of(name) for name in taking("discrete") if name in OFF_POLICY]
ONLY_BOXES = [class_of(name) for name in taking("box")]
NOT_SEVERAL = [class_of(name) for name in where(lambda case: case.in_a_box)]
SCHEDULED = ("lr", "entropy_coeff", "clip_param")


class FromTheScript(PPOLearner):
    """As one that is defined in the script that runs."""


FromTheScript.__module__ = "__main__"


def inside(base):
    class Inside(base):
        pass

    return Inside


def json_of(section, **options):
    return lambda: getattr(PPOConfig(), section)(**options).to_json()


def optimizer(kind, **settings):
    return lambda: small_config().training(optimizer=kind, optimizer_kwargs=settings).build_learner()


def path(path):
    return lambda: PPOConfig().set_path(path, 1)


def from_dict(options):
    return lambda: PPOConfig().update_from_dict(options)


def overridden(**overrides):
    options = {"algorithm_config_overrides_per_module": overrides}
    return lambda: small_config().rl_module(rl_module_spec=two_specs(), **options).build_learner()


def offline(**options):
    return lambda: PPOConfig().offline_data(**options).build_offline_data()


def scheduled(option, points):
    return lambda: small_config().training(**{option: points}).build_learner()


def policies(policies):
    return lambda: PPOConfig().multi_agent(policies=policies)


def assigned(policies):
    return lambda: setattr(of_two_modules(), "policies", policies)


def agents(**options):
    return lambda: of_two_modules(**options).validate()


def agents_with(**modules):
    return lambda: of_two_modules().rl_module(**modules).build_learner()


def built(kind, actions, observations=BOX, **model):
    return lambda: kind().rl_module(model_config=model).build_learner(spaces=(observations, actions))


def chance(kind, epsilon, env):
    return lambda: Collector(kind().build_policy(env), env, epsilon=epsilon).collect(n_episode=1)


def hindsight(kind):
    return lambda: kind().environment("CartPole-v1").replay(her=True).build_trainer()


def in_sequences(kind, recurrent=None, **replay):
    model = {"recurrent": recurrent}
    return lambda: kind().environment("CartPole-v1").rl_module(model_config=model).replay(**replay).build_learner()


class Counting(RLModule):
    """Remembers, and does not say how."""

    critics = compute_actions = sample = 1

    def setup(self):
        self.layer = torch.nn.Linear(1, 1)

    def get_initial_state(self):
        return {"count": torch.zeros(1)}


def own_memory(kind):
    spaces_of = (BOX, TWO if kind in VALUES else MOVE)
    return lambda: kind().rl_module(rl_module_spec=RLModuleSpec(Counting)).build_learner(spaces=spaces_of)


def from_rows(kind, whole=False, batch_size=4):
    """Data without what comes next, or whole transitions, for a network with memory."""
    names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds") if whole else ("obs", "actions")
    rows = transitions(TWO)
    data = SampleBatch({name: rows[name] for name in names})
    policy = small_config(kind).rl_module(model_config={"recurrent": "gru"}).build_policy()
    return lambda: OfflineTrainer(policy, buffer=data, max_epoch=1, step_per_epoch=1, batch_size=batch_size)


def collecting(recurrent, **options):
    config = DQNConfig().environment("CartPole-v1").rl_module(model_config={"recurrent": recurrent})
    return lambda: Collector(config.build_policy(), "CartPole-v1", ReplayBuffer(8, **options))


OTHERS = MultiRLModuleSpec({"a": RLModuleSpec(), "c": RLModuleSpec()})
STRANGER = small_config().multi_agent(policies_to_train=["default_policy", "other"])
ON_A_POLE = PPOConfig().environment("CartPole-v1").multi_agent(policies_to_train=[[0, None], [9, ["later"]]])
OF_SPECS = small_config().rl_module(rl_module_spec=OTHERS).multi_agent(policies_to_train=["a", "z"])
HALF_OF_DOUBLE = small_config().framework(mixed_precision=True, dtype="float64")
COMPILED = small_config().environment("CartPole-v1").framework(compile=True)
UNBOUNDED, NO_MODULES = spaces.Box(-np.inf, np.inf, (2,)), MultiRLModuleSpec({})
REFUSED = [
    # names
    (lambda: A2CConfig().training(target_kl=0.01), "training has no option 'target_kl'"),
    (lambda: get_config("pop"), "unknown algorithm 'pop'; did you mean 'ppo'"),
    (lambda: get_config("POP"), "unknown algorithm 'POP'; did you mean 'ppo'"),
    (path("trainig.lr"), "unknown option 'trainig.lr'; did you mean 'training'"),
    (path("training.learning_rat"), "training has no option 'learning_rat'"),
    (path("rl_module.model_config.hidens"), "did you mean 'hiddens'"),
    (path("lr"), "write section.option, e.g. training.lr"),
    (path("training"), "'training' is a section"),
    (lambda: A2CConfig().framework("tf2"), "framework='tf2' is not allowed; Lockstep has 'torch' alone"),
    (from_dict(A2CConfig().to_dict()), "is for 'a2c', this one for 'ppo'"),
    (from_dict({"trainig": {}}), "unknown section 'trainig'; did you mean 'training'"),
    (from_dict({"training": {"gama": 0.1}}), "no option 'gama'; did you mean 'gamma'"),
    (lambda: PPOConfig.overrides(clip=0.1), "no option 'clip' to override for a module; did you mean"),
    (lambda: PPOConfig().replay(capacity=10), "ppo has no replay section"),
    # what JSON cannot hold
    (json_of("training", lr=lambda step: 0.1), "to JSON", "training.lr=", "a lambda has no name; use points"),
    (json_of("training", learner_class=inside(PPOLearner)), "to JSON", "inside of a function; define it at the top of"),
    (
        json_of("rl_module", rl_module_spec=wrap_module(torch.nn.Linear(2, 2), BOX, TWO)),
        "rl_module.rl_module_spec is a WrappedModule that is built already, which cannot be written to JSON",
        "for a run's folder pass RLModuleSpec(module_class=...)",
    ),
    (json_of("rl_module", rl_module_spec=RLModuleSpec(inside(RLModule))), "rl_module.rl_module_spec.module_class="),
    # modules, their overrides and policies
    (overridden(c={"lr": 0.1}), "names ['c']; the modules are ['a', 'b']"),
    (overridden(a={"learning_rte": 0.1}), "per_module['a']: training has no option 'learning_rte'"),
    (overridden(a={"num_epochs": 3}), "training.num_epochs holds for the whole update", "own lr, gamma"),
    (overridden(a={"minibatch_size": 3}), "training.minibatch_size holds for the whole update"),
    (overridden(a={"grad_clip": 0}), "per_module['a']: training.grad_clip=0 is not allowed"),
    *((give(["a/b"]), "module id 'a/b' must be printable text without") for give in (policies, assigned)),
    *((give({"a": {"modelconfig": {}}}), "['modelconfig']; an RLModuleSpec has") for give in (policies, assigned)),
    (agents(policies_to_train=["b", "z"]), "policies_to_train=['b', 'z'] names others than multi_agent.policies=['a'"),
    (agents(policy_mapping_fn=None), "policy_mapping_fn=None maps every agent to 'default_policy'"),
    (agents(policies=[]), "multi_agent.policies=[] is empty"),
    (agents_with(rl_module_spec=OTHERS), "policies=['a', 'b'] are others than the modules ['a', 'c']"),
    (agents_with(algorithm_config_overrides_per_module={"z": {"lr": 0.1}}), "'z'", "names others than multi_agent.p"),
    (agents_with(rl_module_spec=RLModuleSpec(DefaultActorCriticModule, BOX, TWO).build()), "one built module for"),
    (STRANGER.build_learner, "policies_to_train=", "'other'", "the modules are ['default_policy']"),
    (STRANGER.validate, "policies_to_train=", "names ['other']; the modules are ['default_policy']"),
    (ON_A_POLE.validate, "policies_to_train=", "names ['later']; the modules are ['default_policy']"),
    (OF_SPECS.validate, "policies_to_train=", "names ['z']; the modules are ['a', 'c']"),
    (small_config().rl_module(rl_module_spec=NO_MODULES).build_learner, "no modules; a learner needs at least one"),
    # environments, spaces, networks
    (PPOConfig().validate, 'environment.env is not set; give an id such as "CartPole-v1"'),
    (lambda: PPOConfig().build_learner("CartPol-v1"), "CartPole-v1"),
    (built(PPOConfig, TWO, spaces.Text(3)), "no network for", "space Text"),
    *((built(PPOConfig, s), f"ppo cannot act in {s}", "Discrete, MultiDiscrete, MultiBinary") for s in NO_ACTIONS),
    *((built(A2CConfig, s), f"a2c cannot act in {s}", "Discrete, MultiDiscrete, MultiBinary") for s in NO_ACTIONS),
    *((built(kind, s), "action values need a Discrete action space") for kind in VALUES for s in NO_CHOICES),
    *((hindsight(kind), "CartPoleEnv has no compute_reward") for kind in VALUES),
    (built(SACConfig, MOVE, critic_hiddens=(0,)), "critic_hiddens must be a list of positive whole numbers"),
    (built(SACConfig, SEVERAL), "SAC needs a Box or Discrete action space"),
    (built(SACConfig, UNBOUNDED), "sac cannot act in Box(-inf, inf, (2,), float32)", "finite; wrap"),
    (built(SACConfig, MOVE, num_critics=0), "num_critics=0", "at least 1"),
    (built(SACConfig, MOVE, log_std_bounds=(2.0, 1.0)), "log_std_bounds must be"),
    *((built(kind, TWO), "needs a Box action space") for kind in ONLY_BOXES),
    *((built(kind, SEVERAL), "needs a Box") for kind in NOT_SEVERAL),
    (lambda: BCConfig().training(loss="mse").build_learner(spaces=(BOX, TWO)), "loss='mse' needs a Box of actions"),
    (HALF_OF_DOUBLE.build_learner, "mixed_precision=True needs framework.dtype='float32', not 'float64'"),
    # memory
    (in_sequences(SACConfig, sequence_length=4), "replay.sequence_length=4 is for a network with memory; set"),
    (in_sequences(DQNConfig, burn_in=0), "replay.burn_in=0 is for a network with memory; set"),
    (in_sequences(DQNConfig, "gru", sequence_length=4, burn_in=5), "replay.burn_in=5", "up to sequence_length=4"),
    (in_sequences(DQNConfig, "gru", her=True), "replay.her=True does not go with rl_module.model_config.recurrent"),
    *((own_memory(kind), "Counting (module 'default_policy') does not have: memories") for kind in SAMPLED),
    (from_rows(BCConfig), "learns from steps in the order of time", "all columns of a transition"),
    (from_rows(BCConfig, whole=True, batch_size=None), "batch_size=None is not allowed with a network that has"),
    (collecting("gru"), "a policy with memory learns from sequences", "sequence_length=80"),
    (collecting(None, sequence_length=4), "sequence_length=4 is for a policy with memory, and this one has none"),
    # optimizers
    (optimizer("adm"), "training.optimizer='adm' is not allowed", "'adam', 'adamw', 'rmsprop', 'sgd'"),
    (
        optimizer("adam", wd=0.1),
        "training.optimizer_kwargs={'wd': 0.1} is not allowed for",
        "'adam'",
        "there is no 'wd'",
    ),
    (optimizer("sgd", momentun=0.1), "no 'momentun'; did you mean 'momentum'"),
    (optimizer("sgd", lr=0.1), "set training(lr=...)"),
    (optimizer("adamw", eps=0.1), "set training(adam_epsilon=...)"),
    (optimizer("rmsprop", maximize=True), "losses are minimized"),
    (optimizer("sgd", momentum=-1.0), "training.optimizer='sgd' with optimizer_kwargs={'momentum': -1.0}", "momentum"),
    (optimizer(torch.optim.LBFGS), "optimizer=<class 'torch.optim.lbfgs.LBFGS'>", "closure"),
    (optimizer(lambda params, lr: params), "must be a torch.optim.Optimizer, not list"),
    (overridden(a={"optimizer": "sgd", "optimizer_kwargs": {"beta": 1}}), "per_module['a']", "there is no 'beta'"),
    (
        small_config().environment("CartPole-v1").framework(compile=True).training(optimizer="sgd").validate,
        "Adam's step",
    ),
    # schedules, data, an epsilon of evaluation's own
    *((scheduled(option, [[1, 0.1], [5, 0.0]]), "first point must be at step 0") for option in SCHEDULED),
    *((scheduled(option, [[0, 0.1]]), "at least two points") for option in SCHEDULED),
    (offline(), "offline_data.input_ is not set"),
    (offline(input_=[]), "offline_data.input_=[] names no file"),
    (PPOConfig().environment("CartPole-v1").evaluation(epsilon=0.1).validate, "epsilon=0.1 is not allowed for ppo"),
    (chance(DQNConfig, -1, "CartPole-v1"), "between 0 and 1"),
    (chance(PPOConfig, 0.1, "CartPole-v1"), "epsilon=0.1: ppo does not explore by it"),
]
OF_WRONG_TYPE = [
    (overridden(a=0.1), "per_module['a']: ", "must be a dict of training options"),
    *((give(value), "give a list of module ids") for give in (policies, assigned) for value in ("a", 3)),
    *((give({"a": 3}), "policies['a'] is a int; give an RLModuleSpec") for give in (policies, assigned)),
    (lambda: PPOConfig().build_learner_group(spaces=(BOX,)), "(observation space, action space)"),
    (offline(input_=[3]), "offline_data.input_=[3] must be the path of a file"),
]
ROWS = [(row, ValueError) for row in REFUSED] + [(row, TypeError) for row in OF_WRONG_TYPE]


@pytest.mark.parametrize("row, error", ROWS, ids=[row[1] for row, _ in ROWS])
def test_what_a_configuration_cannot_be_is_refused_with_what_helps(row, error):
    call, *words = row
    with pytest.raises(error) as refused:
        call()
    assert [word for word in words if word not in str(refused.value)] == []
