"""What the tests know of each algorithm: one table, `ALGORITHM_CASES`, from which all of them draw.

An algorithm's name stands in this table and in its own test file. What its configuration says itself (whether it is
offline, which exploration it has, whether it learns from tensors) is asked there and not written down again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from mirror_parts import mirror

from lockstep import ALGORITHMS, AlgorithmConfig, get_config

Options = Mapping[str, Any]
Refused = tuple[str, Any, str]
"""an option, a value that it cannot have, words that the message has"""

NAMES = tuple(config.algorithm for config in ALGORITHMS if not config.needs_teacher)
"""the algorithms that learn without another policy; the test file of the one that needs a teacher has its own runs"""
OFFLINE = tuple(config.algorithm for config in ALGORITHMS if config.is_offline)
OFF_POLICY = tuple(config.algorithm for config in ALGORITHMS if config.is_off_policy)
ON_POLICY = tuple(name for name in NAMES if name not in (*OFFLINE, *OFF_POLICY))
SPACES: dict[str, spaces.Space[Any]] = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1.0, 1.0, (2,), np.float32)}

ALL_ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary", "Box", "Dict", "Tuple")


@dataclass(frozen=True)
class Probes:
    """How an algorithm learns `lockstep.envs.toys.probes` (gamma 0.5, two layers of 16 units) in seconds."""

    training: Options
    steps: int = 400
    fast: frozenset[str] | None = frozenset()
    """probes that the fast suite learns; `None`: all"""
    long: frozenset[str] | None = None
    """probes that `make test-long` learns, which leaves the others to `make test-learning`; `None`: all others"""
    few_updates: bool = False
    """few gradient steps for each rollout: values and actions come less near to the exact ones"""
    preset: str | None = None
    """method of the configuration's class that makes it"""
    of_probe: Mapping[str, Options] = field(default_factory=dict)
    """training options that differ, by name of the probe"""


@dataclass(frozen=True)
class Memory:
    """How an algorithm with a recurrent network learns the probes of memory, from sequences of replay or data."""

    training: Options = field(default_factory=dict)
    in_a_box: bool = False
    steps: int = 3_000
    update_per_step: float = 0.125
    parts: Options = field(default_factory=dict)
    """`{"lstm": "fast"}`: memories that are not left to `make test-learning`, and the part that has them"""
    attention_error: float = 0.15
    """how far actions in a Box may be from the best ones with attention"""
    of_kind: Mapping[str, Options] = field(default_factory=dict)
    """training options that differ, by kind of memory"""


@dataclass(frozen=True)
class Comparison:
    """Twenty updates by several learners that must be those of one, in `test_learner_distributed.py`."""

    training: Options = field(default_factory=dict)
    case: Options = field(default_factory=dict)
    """other fields of `distributed_parts.Case`"""
    part: str = "long"
    """`fast`, `long`, or `faults`: variants of what another comparison shows"""


@dataclass(frozen=True)
class AlgorithmCase:
    """The row of an algorithm. A variant of another algorithm is `replace(that row, ...)`."""

    product: Options
    """training options with which it learns `CueEnv` in a second (`tests/product`)"""
    probes: Mapping[str, Probes]
    """by name of the case; none: its own test file has some"""
    actions: tuple[str, ...] = ALL_ACTIONS
    """kinds of action spaces that it takes, as `lockstep list` names them"""
    small: Options = field(default_factory=dict)
    """training options for runs of a few updates of 16 to 64 rows"""
    on_device: Options = field(default_factory=dict)
    """training options with which steps of tensor environments stay on the device"""
    memory: Mapping[str, Memory] = field(default_factory=dict)
    """by name of the case: off-policy and offline algorithms"""
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """by what comes behind the algorithm's name in the name of the case"""
    updates: Options = field(default_factory=dict)
    """training options of twenty updates that are compared, in which targets move and estimates are few"""
    takes_batches: bool = True
    """whether it learns from batches of an on-policy rollout, beside episodes"""
    is_of_whole_batches: bool = False
    """whether it takes no minibatches"""
    refused: tuple[Refused, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    """what some of its own options declare"""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """by kind of action space: what its learner needs of a network beside the outputs that acting needs"""
    columns: tuple[str, ...] = ()
    """columns of a batch from episodes that no other algorithm has"""
    has_values: bool = True
    """whether its network tells the value of a state"""
    steps_itself: tuple[str, ...] = ()
    """optimizers that are the algorithm's own whatever `training.optimizer` says"""
    optimizers: frozenset[str] = frozenset()
    """names of some of its optimizers"""
    imitates: bool = False
    """whether its data must be an expert's"""
    teacher: Callable[..., Any] | None = None
    """function that makes the policy to learn from, of a function that makes an environment, and rows of its best
    actions"""
    walks: tuple[str, ...] = ()
    """kinds of actions with which random walks draw it (`tests/product`): who adds an algorithm here, or moves one,
    changes the walk of every seed"""
    is_fast: bool = False
    """whether the fast suite has it where a test is the same for all algorithms; the others are long tests there"""

    @property
    def in_a_box(self) -> bool:
        """Whether tests that need one action space give it a Box: it takes one, and is not for all kinds."""
        return "Box" in self.actions and "MultiDiscrete" not in self.actions

    @property
    def has_state_values(self) -> bool:
        """Whether any network will do that has `vf_preds` or `compute_values`."""
        return self.has_values and not self.lacks and "MultiDiscrete" in self.actions


# -- what rows have in common ---

CLIPPED = {"grad_clip": 0.05, "grad_clip_by": "global_norm", "lr": 1e-2}
OF_SAMPLES: tuple[Refused, ...] = (
    ("training.minibatch_size", 8, "it must be None"),
    ("training.num_epochs", 2, "it must be 1"),
)
OF_ACTION_VALUES: tuple[Refused, ...] = (
    *OF_SAMPLES,
    ("training.epsilon", 1.5, "between 0 and 1"),
    ("training.tau", 0.0, "above 0 and at most 1"),
    ("training.alpha", 1.0, "no option 'alpha'"),
    ("replay.capacity", 3, "less than one transition for each"),
    ("replay.beta", [[0, 0.4], [10, -1]], "at least 0"),
    ("replay.her_strategy", "past", "'future', 'final', 'episode'"),
)
SHARE, RATE, COUNT = "between 0 and 1", "above 0 and at most 1", "at least 1"
SHORT = frozenset({"TruncationProbe", "ActionProbeContinuous", "ObservationActionProbe"})
"""probes for algorithms that are made of parts of the others"""
ONE, ONE_IN_A_BOX = frozenset({"ObservationActionProbe"}), frozenset({"ObservationActionProbeContinuous"})

ON_POLICY_PRODUCT = {"gamma": 0.5, "lr": 1e-2, "entropy_coeff": 0.0}
MINIBATCHES_PRODUCT = {**ON_POLICY_PRODUCT, "train_batch_size": 128, "minibatch_size": 32, "num_epochs": 4}
VALUES_PRODUCT = {"gamma": 0.5, "lr": 1e-2, "train_batch_size": 64, "epsilon": 0.3, "target_update_interval": 10}
SOFT_PRODUCT = {"gamma": 0.5, "lr": 1e-2, "train_batch_size": 64, "tau": 0.05}
OFFLINE_PRODUCT = {"gamma": 0.5, "lr": 1e-2, "train_batch_size": 64}

MINIBATCHES = {"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 64}
VALUES = {"lr": 2e-2, "epsilon": 0.3, "target_update_interval": 10}
VALUES_FROM_SEQUENCES = {"epsilon": 0.3, "target_update_interval": 20}
SOFT = {"lr": [[0, 1e-2], [600, 1e-3]], "tau": 0.05}
DELAYED = {"tau": 0.05, "lr": [[0, 1e-2], [900, 1e-3]], "actor_lr": [[0, 3e-3], [900, 3e-4]], "exploration_noise": 0.3}
TEMPERATURE = {"initial_alpha": 0.02, "alpha_lr": 1e-3}
NEW_NOISE = {"noise_repeat": 1}  # for several agents, and collectors that take the ready ones first
SOFT_FROM_SEQUENCES = {"lr": [[0, 1e-2], [3_000, 1e-3]], "tau": 0.05, **TEMPERATURE, "train_batch_size": 32}
SYMMETRIC = {"model": {"symmetric": True}}
FOLLOWED = {"target_update_interval": 4, "tau": 0.5}
ATOMS = {"num_atoms": 21, "v_min": -2.0, "v_max": 3.0}  # none at 1 / (1 - gamma)
FEW_ATOMS = {"num_atoms": 5, "v_min": -10.0, "v_max": 40.0}
CONSERVATIVE = {"min_q_weight": 0.1, "actor_lr": 3e-3, "tau": 0.05, **TEMPERATURE}
IMPLICIT = {"tau": 0.05, "beta": 10.0, "expectile": 0.8}


def cloned(make: Callable[[], Any], rows: Any) -> Any:
    """Return a policy that has learned the actions of recorded rows."""
    config = get_config("bc").environment(make).offline_data(input_=rows).training(lr=1e-2, train_batch_size=64)
    config.rl_module(model_config={"hiddens": (16,)}).evaluation(evaluation_interval=0).debugging(seed=1)
    trainer = config.reporting(total_steps=400, steps_per_epoch=400).build_trainer()
    trainer.run()
    return trainer.policy


DQN = AlgorithmCase(
    product=VALUES_PRODUCT,
    probes={"dqn": Probes(VALUES, fast=None)},
    actions=("Discrete",),
    small={"target_update_interval": 7},
    memory={"dqn": Memory(VALUES_FROM_SEQUENCES, parts={"lstm": "fast"})},
    comparisons={
        ", whole samples": Comparison({**CLIPPED, **FOLLOWED}, {"minibatch_size": None}, "faults"),
        ", samples on one learner now and then": Comparison(
            {**CLIPPED, **FOLLOWED, "double_q": False, "huber_delta": None}, {"num_epochs": 1, "empty": True}, "fast"
        ),
        ", sequences of an LSTM, empty shards": Comparison(
            {**CLIPPED, **FOLLOWED}, {"memory": "lstm", "minibatch_size": 4, "empty": True}
        ),
        ", sequences of attention": Comparison(
            {**CLIPPED, **FOLLOWED, "lr": 1e-3}, {"memory": "attention", "minibatch_size": 4}, "faults"
        ),
    },
    updates={"lr": 1e-2, "target_update_interval": 5, "tau": 0.5},
    refused=OF_ACTION_VALUES,
    limits={"epsilon": SHARE, "tau": RATE, "target_update_interval": COUNT, "huber_delta": "above 0"},
    walks=("Discrete",),
)
SAC = AlgorithmCase(
    product={**SOFT_PRODUCT, **TEMPERATURE},
    probes={
        "sac": Probes({**SOFT, **TEMPERATURE}, 600, ONE_IN_A_BOX, frozenset({"TruncationProbe"})),
    },
    actions=("Discrete", "Box"),
    memory={
        "sac": Memory({**SOFT_FROM_SEQUENCES, "target_entropy": 0.02}),
        "sac_box": Memory({**SOFT_FROM_SEQUENCES, "target_entropy": -2.0}, in_a_box=True, steps=8_000),
    },
    comparisons={
        "": Comparison({**CLIPPED, "tau": 0.1}, {"num_epochs": 1}),
        ", adamw": Comparison(
            {**CLIPPED, "tau": 0.1, "optimizer": "adamw", "optimizer_kwargs": {"weight_decay": 0.1}}, {"num_epochs": 1}
        ),
        ", discrete, empty shards": Comparison({**CLIPPED, "tau": 0.1}, {"in_a_box": False, "empty": True}, "faults"),
        ", sequences of a GRU, empty shards": Comparison(
            {**CLIPPED, "tau": 0.1}, {"memory": "gru", "minibatch_size": 4, "empty": True}
        ),
        ", discrete, sequences of a GRU": Comparison(
            {**CLIPPED, "tau": 0.1}, {"in_a_box": False, "memory": "gru", "minibatch_size": 4}, "faults"
        ),
        ", mirror images, empty shards": Comparison(
            {**CLIPPED, "tau": 0.1, "symmetry": mirror, "symmetry_loss_coeff": 0.5}, {"num_epochs": 1, "empty": True}
        ),
        ", discrete, mirror images": Comparison(
            {**CLIPPED, "tau": 0.1, "symmetry": mirror}, {"in_a_box": False, "num_epochs": 1}, "faults"
        ),
        ", a symmetric network, empty shards": Comparison(
            {**CLIPPED, "tau": 0.1, "symmetry": mirror}, {**SYMMETRIC, "num_epochs": 1, "empty": True}
        ),
        ", discrete, a symmetric network": Comparison(
            {**CLIPPED, "tau": 0.1, "symmetry": mirror}, {**SYMMETRIC, "in_a_box": False, "num_epochs": 1}, "faults"
        ),
    },
    refused=(
        *OF_SAMPLES,
        ("training.alpha", "automatic", "'auto'"),
        ("training.policy_lr", 2, "did you mean 'actor_lr'?"),
        ("training.ent_coef", 2, "did you mean 'alpha'?"),
    ),
    limits={"tau": RATE, "alpha": "at least 0", "initial_alpha": "above 0", "target_update_interval": COUNT},
    lacks={"Box": "critics, sample", "Discrete": "critics"},
    optimizers=frozenset({"actor", "critic", "alpha"}),
    walks=("Discrete", "Box"),
)

# -- the table ---

ALGORITHM_CASES: dict[str, AlgorithmCase] = {
    "ppo": AlgorithmCase(
        product=MINIBATCHES_PRODUCT,
        probes={"ppo": Probes({**MINIBATCHES, "lr": 2e-2, "num_epochs": 4}, 3_000, fast=None)},
        small={"minibatch_size": 32, "num_epochs": 2},
        updates={"lr": 1e-2, "kl_coeff": 0.2, "grad_clip": 0.1, "normalize_advantages": "minibatch"},
        limits={"lr": "at least 0", "gamma": SHARE, "lambda_": SHARE, "clip_param": "above 0", "dual_clip": "above 1"},
        columns=("vf_preds",),
        walks=("Discrete", "Box"),
        is_fast=True,
    ),
    "a2c": AlgorithmCase(
        product={**ON_POLICY_PRODUCT, "lr": 2e-2, "train_batch_size": 32},
        probes={
            "a2c": Probes({"lr": 2e-2, "train_batch_size": 40, "entropy_coeff": 0.0}, 5_500, ONE, few_updates=True)
        },
        comparisons={
            ", shuffled": Comparison({**CLIPPED, "normalize_advantages": True}, {"empty": True}, "faults"),
            ", from batches": Comparison(CLIPPED, {"source": "batch"}, "faults"),
        },
        updates={"lr": 1e-2, "grad_clip": 0.1},
        walks=("Discrete", "Box"),
    ),
    "impala": AlgorithmCase(
        product={**MINIBATCHES_PRODUCT, "num_epochs": 2},
        probes={
            "impala": Probes(
                {**MINIBATCHES, "num_epochs": 2, "entropy_coeff": 0.0}, 8_000, ONE, SHORT, few_updates=True
            )
        },
        comparisons={
            ", older policies acted, empty shards": Comparison(CLIPPED, {"behaviour": True, "empty": True}),
            ", sequences of an LSTM": Comparison(CLIPPED, {"memory": "lstm", "behaviour": True, "minibatch_size": 4}),
        },
        updates={"lr": 1e-2},
        takes_batches=False,
        walks=("Discrete",),
    ),
    "appo": AlgorithmCase(
        product=MINIBATCHES_PRODUCT,
        probes={"appo": Probes({**MINIBATCHES, "num_epochs": 4, "entropy_coeff": 0.0}, 6_000, ONE, SHORT)},
        comparisons={
            ", older policies acted, KL penalty": Comparison(
                {**CLIPPED, "use_kl_loss": True, "kl_target": 1e-3, "tau": 0.5},
                {"normalize": True, "behaviour": True},
                "fast",
            ),
            ", multi-agent, absent modules": Comparison(
                CLIPPED, {"modules": ("p0", "p1"), "empty": True, "minibatch_size": 20}, "faults"
            ),
            ", from batches": Comparison(CLIPPED, {"source": "batch"}, "faults"),
        },
        updates={"lr": 1e-2},
        takes_batches=False,
        limits={
            "target_worker_clipping": COUNT,
            "max_lag": "at least 0",
            "target_network_update_freq": COUNT,
            "tau": RATE,
        },
        walks=("Discrete",),
        is_fast=True,
    ),
    "trpo": AlgorithmCase(
        product={"gamma": 0.5, "lr": 1e-2, "train_batch_size": 128, "num_epochs": 20, "max_kl": 0.05},
        probes={
            "trpo": Probes({"lr": 1e-2, "train_batch_size": 128, "num_epochs": 40, "max_kl": 0.05}, 4_000, long=SHORT)
        },
        small={"num_epochs": 3},
        comparisons={
            ", empty shards": Comparison(
                {"lr": 1e-2, "cg_iterations": 4},
                {"normalize": True, "minibatch_size": None, "num_epochs": 3, "empty": True},
            ),
            ", sequences of a GRU": Comparison(
                {"lr": 1e-2, "cg_iterations": 4}, {"memory": "gru", "minibatch_size": None}, "faults"
            ),
            ", multi-agent, absent modules": Comparison(
                {"lr": 1e-2, "cg_iterations": 4},
                {"modules": ("p0", "p1"), "empty": True, "minibatch_size": None},
                "faults",
            ),
        },
        updates={"lr": 1e-2, "cg_iterations": 4},
        refused=(
            ("training.minibatch_size", 4, "must be None"),
            ("framework.compile", True, "not allowed for trpo"),
            ("rl_module.model_config", {"vf_share_layers": True}, "not allowed for trpo"),
        ),
        limits={"lambda_": SHARE, "max_kl": "above 0", "cg_iterations": COUNT, "cg_damping": "at least 0"},
        lacks={"Box": "value_encoder, value_head"},
        is_of_whole_batches=True,
        steps_itself=("policy",),
        walks=("Discrete", "Box"),
    ),
    "pqn": AlgorithmCase(
        product={
            "gamma": 0.5,
            "lr": 1e-2,
            "train_batch_size": 128,
            "minibatch_size": 32,
            "num_epochs": 4,
            "epsilon": 0.3,
        },
        probes={"pqn": Probes({**MINIBATCHES, "epsilon": 0.3, "num_epochs": 4}, 8_000, ONE, SHORT)},
        actions=("Discrete",),
        small={"minibatch_size": 8},
        comparisons={", empty shards": Comparison(CLIPPED, {"normalize": True, "empty": True})},
        updates={"lr": 1e-2},
        takes_batches=False,
        refused=(
            ("training.epsilon", 1.5, "between 0 and 1"),
            ("training.tau", 0.01, "no option 'tau'"),
            ("rl_module.model_config", {"recurrent": "lstm"}, "recurrent='lstm' is not allowed for pqn"),
            ("rl_module.model_config", {"attention": {}}, "is not allowed for pqn"),
        ),
        limits={"epsilon": SHARE, "lambda_": SHARE, "minibatch_size": COUNT, "num_epochs": COUNT},
        walks=("Discrete",),
    ),
    "dqn": DQN,
    "rainbow": replace(
        DQN,
        product={**VALUES_PRODUCT, "num_atoms": 11, "v_min": -3.0, "v_max": 3.0},
        probes={"rainbow": Probes({**VALUES, **ATOMS}, long=SHORT)},
        small={**DQN.small, **FEW_ATOMS},
        memory={"rainbow": Memory({"target_update_interval": 20, **ATOMS})},
        comparisons={
            ", empty shards": Comparison({**CLIPPED, **FOLLOWED, **FEW_ATOMS}, {"exploration": "noisy", "empty": True})
        },
        refused=(*OF_ACTION_VALUES, ("training.v_max", -100.0, "above v_min=-100.0")),
        limits={"num_atoms": "at least 2"},
        lacks={"Discrete": "value_outputs, masked, mean_values, mean_of_probs, value_range"},
    ),
    "qrdqn": replace(
        DQN,
        product={**VALUES_PRODUCT, "num_quantiles": 8},
        probes={"qrdqn": Probes({**VALUES, "num_quantiles": 8}, fast=ONE, long=SHORT)},
        small={**DQN.small, "num_quantiles": 5},
        memory={"qrdqn": Memory({**VALUES_FROM_SEQUENCES, "num_quantiles": 8})},
        comparisons={"": Comparison({**CLIPPED, **FOLLOWED, "num_quantiles": 5})},
        refused=(*OF_ACTION_VALUES, ("training.num_atoms", 51, "no option 'num_atoms'")),
        limits={"num_quantiles": "at least 2", "kappa": "at least 0"},
        lacks={"Discrete": "value_outputs, masked, mean_values"},
    ),
    "c51": replace(
        DQN,
        product={**VALUES_PRODUCT, "num_atoms": 11, "v_min": -3.0, "v_max": 3.0},
        probes={"c51": Probes({**VALUES, **ATOMS}, fast=ONE, long=SHORT)},
        small={**DQN.small, **FEW_ATOMS},
        memory={"c51": Memory({**VALUES_FROM_SEQUENCES, **ATOMS})},
        comparisons={
            "": Comparison({**CLIPPED, **FOLLOWED, **FEW_ATOMS}),
            ", sequences of a GRU": Comparison(
                {**CLIPPED, **FOLLOWED, **FEW_ATOMS}, {"memory": "gru", "minibatch_size": 4}, "faults"
            ),
        },
        refused=(
            *OF_ACTION_VALUES,
            ("training.v_max", -100.0, "above v_min=-100.0"),
            ("training.num_quantiles", 8, "no option 'num_quantiles'"),
        ),
        limits={"num_atoms": "at least 2"},
        lacks={"Discrete": "value_outputs, masked, mean_values, mean_of_probs, value_range"},
        walks=(),
    ),
    "munchausen_dqn": replace(
        DQN,
        probes={"munchausen_dqn": Probes({**VALUES, "entropy_temperature": 0.01, "munchausen_coeff": 0.5}, long=SHORT)},
        memory={"munchausen_dqn": Memory({**VALUES_FROM_SEQUENCES, "entropy_temperature": 0.01})},
        comparisons={
            ", empty shards": Comparison({**CLIPPED, **FOLLOWED, "entropy_temperature": 0.5}, {"empty": True}),
            ", sequences of a GRU": Comparison(
                {**CLIPPED, **FOLLOWED, "entropy_temperature": 0.5}, {"memory": "gru", "minibatch_size": 4}, "faults"
            ),
        },
        refused=(
            *OF_ACTION_VALUES,
            ("replay.n_step", 3, "set replay(n_step=1)"),
            ("training.double_q", True, "no option 'double_q'"),
        ),
        limits={
            "munchausen_coeff": SHARE,
            "entropy_temperature": "above 0",
            "lowest_log_policy": "at most 0",
            "tau": RATE,
        },
        walks=(),
    ),
    "iqn": replace(
        DQN,
        product={**VALUES_PRODUCT, "num_cosines": 16},
        probes={"iqn": Probes({**VALUES, "lr": 1e-2, "num_cosines": 16}, fast=ONE, long=SHORT)},
        small={**DQN.small, "num_quantiles": 5, "num_cosines": 8},
        memory={"iqn": Memory({**VALUES_FROM_SEQUENCES, "num_cosines": 16})},
        comparisons={
            ", empty shards": Comparison(
                {
                    **CLIPPED,
                    **FOLLOWED,
                    "num_quantiles": 5,
                    "num_target_quantiles": 3,
                    "num_policy_quantiles": 4,
                    "num_cosines": 6,
                },
                {"empty": True},
                "fast",
            ),
            ", sequences of a GRU": Comparison(
                {
                    **CLIPPED,
                    **FOLLOWED,
                    "num_quantiles": 5,
                    "num_target_quantiles": 3,
                    "num_policy_quantiles": 4,
                    "num_cosines": 6,
                    "double_q": False,
                },
                {"memory": "gru", "minibatch_size": 4},
                "faults",
            ),
        },
        refused=(*OF_ACTION_VALUES, ("training.num_quantile", 8, "did you mean 'num_quantiles' or")),
        limits={
            "num_quantiles": COUNT,
            "num_target_quantiles": COUNT,
            "num_policy_quantiles": COUNT,
            "num_cosines": COUNT,
        },
        lacks={"Discrete": "value_outputs, masked, mean_values"},
        walks=(),
        is_fast=True,
    ),
    "sac": SAC,
    "reinforce": AlgorithmCase(
        product={"gamma": 0.5, "lr": 2e-2, "train_batch_size": 32},
        probes={"reinforce": Probes({"lr": 2e-2, "train_batch_size": 40}, 5_500, ONE, few_updates=True)},
        comparisons={
            ", empty shards": Comparison(CLIPPED, {"normalize": True, "empty": True}),
            ", sequences of a GRU": Comparison(CLIPPED, {"memory": "gru", "minibatch_size": 4}, "faults"),
        },
        updates={"lr": 1e-2},
        takes_batches=False,
        refused=(
            ("env_runners.batch_mode", "truncate_episodes", "use 'complete_episodes'"),
            ("training.lambda_", 0.9, "no option 'lambda_'"),
        ),
        columns=("returns_to_go",),
        has_values=False,
        walks=("Discrete",),
        is_fast=True,
    ),
    "td3": AlgorithmCase(
        product={**SOFT_PRODUCT, "exploration_noise": 0.3, "target_noise": 0.05},
        probes={
            "td3": Probes({**DELAYED, "target_noise": 0.05}, 900, ONE_IN_A_BOX, ONE_IN_A_BOX),
            "ddpg": Probes({**DELAYED, "target_noise": 0.0}, 900, long=ONE_IN_A_BOX, preset="ddpg"),
        },
        actions=("Box",),
        memory={
            "td3": Memory(
                {"tau": 0.05, "train_batch_size": 32, "exploration_noise": 0.3, "target_noise": 0.05},
                in_a_box=True,
                parts={"gru": "long"},
            )
        },
        comparisons={
            ", empty shards": Comparison({**CLIPPED, "tau": 0.1}, {"empty": True, "shuffle": False}),
            ", sequences of an LSTM": Comparison(
                {**CLIPPED, "tau": 0.1}, {"memory": "lstm", "minibatch_size": 4}, "faults"
            ),
            ", two modules": Comparison({"lr": 1e-2, "tau": 0.1}, {"modules": ("p0", "p1")}, "faults"),
            ", as DDPG": Comparison(
                {**CLIPPED, "tau": 0.1, "policy_delay": 1, "target_noise": 0.0}, {"model": {"num_critics": 1}}
            ),
        },
        refused=(
            *OF_SAMPLES,
            ("training.q_lr", 2, "did you mean 'critic_lr'?"),
            ("training.polyak", 1.5, "did you mean 'tau'?"),
            ("training.policy_freq", 2, "did you mean 'policy_delay'?"),
        ),
        limits={"policy_delay": COUNT, "target_noise": "at least 0", "noise_clip": "at least 0", "tau": RATE},
        lacks={"Box": "critics, compute_actions"},
        walks=("Box",),
        is_fast=True,
    ),
    "tqc": replace(
        SAC,
        product={**SAC.product, "num_quantiles": 8, "quantiles_to_drop": 0},
        probes={
            "tqc": Probes({**SOFT, **TEMPERATURE, "num_quantiles": 8, "quantiles_to_drop": 0}, 600, long=ONE_IN_A_BOX)
        },
        actions=("Box",),
        small={"num_quantiles": 5},
        memory={
            "tqc": Memory(
                {**SOFT_FROM_SEQUENCES, "target_entropy": -2.0, "num_quantiles": 8, "quantiles_to_drop": 0},
                in_a_box=True,
                steps=8_000,
            )
        },
        comparisons={
            ", empty shards": Comparison({**CLIPPED, "tau": 0.1, "num_quantiles": 5}, {"empty": True}),
            ", sequences of a GRU": Comparison(
                {**CLIPPED, "tau": 0.1, "num_quantiles": 5}, {"memory": "gru", "minibatch_size": 4}, "faults"
            ),
            ", mirror images": Comparison({**CLIPPED, "tau": 0.1, "num_quantiles": 5, "symmetry": mirror}),
            ", a symmetric network": Comparison(
                {**CLIPPED, "tau": 0.1, "num_quantiles": 5, "symmetry": mirror}, SYMMETRIC, "faults"
            ),
        },
        refused=(
            *OF_SAMPLES,
            ("training.quantiles_to_drop", 25, "below num_quantiles=25"),
            ("training.n_quantiles", 10, "did you mean 'num_quantiles'?"),
            ("training.top_quantiles_to_drop_per_net", 1, "did you mean 'quantiles_to_drop'?"),
        ),
        limits={"num_quantiles": "at least 2", "quantiles_to_drop": "at least 0", "tau": RATE},
        lacks={},
        walks=("Box",),
    ),
    "crossq": replace(
        SAC,
        product={"gamma": 0.5, "lr": 1e-2, "train_batch_size": 64, **TEMPERATURE, "policy_delay": 1},
        probes={
            "crossq": Probes(
                {"lr": [[0, 1e-2], [1_000, 1e-4]], **TEMPERATURE, "policy_delay": 1}, 1_200, long=ONE_IN_A_BOX
            )
        },
        actions=("Box",),
        memory={
            "crossq": Memory(
                {
                    "lr": [[0, 3e-3], [8_000, 1e-4]],
                    "policy_delay": 1,
                    "initial_alpha": 0.005,
                    "alpha_lr": 0.0,
                    "train_batch_size": 256,
                    "target_entropy": -2.0,
                },
                in_a_box=True,
                steps=8_000,
                update_per_step=0.5,
                attention_error=0.4,  # without memory it is 0.5
            )
        },
        comparisons={
            ", empty shards": Comparison(CLIPPED, {"empty": True}, "fast"),
            ", sequences of a GRU, empty shards": Comparison(
                CLIPPED, {"memory": "gru", "minibatch_size": 4, "empty": True}, "faults"
            ),
            ", mirror images, empty shards": Comparison(
                {**CLIPPED, "symmetry": mirror, "symmetry_loss_coeff": 0.5}, {"empty": True}
            ),
            ", a symmetric network, empty shards": Comparison(
                {**CLIPPED, "symmetry": mirror}, {**SYMMETRIC, "empty": True}, "faults"
            ),
        },
        refused=(
            *OF_SAMPLES,
            ("training.tau", 0.1, "no option 'tau'"),
            ("training.policy_freq", 2, "'policy_delay'?"),
        ),
        limits={"policy_delay": COUNT, "alpha": "at least 0"},
        lacks={},
        walks=("Box",),
    ),
    "flashsac": replace(
        SAC,
        product={"gamma": 0.5, "lr": 1e-2, "train_batch_size": 64, "tau": 0.05, **NEW_NOISE, "policy_delay": 1},
        probes={
            "flashsac": Probes(
                {
                    "lr": [[0, 1e-2], [600, 1e-3]],
                    "tau": 0.05,
                    **NEW_NOISE,
                    "policy_delay": 1,
                    "v_min": -2.0,
                    "v_max": 3.0,
                    "bounded_rewards": False,
                },
                900,
                long=ONE_IN_A_BOX,
                # Features of one constant observation have no variance to be divided by.
                of_probe={"ActionProbeContinuous": {"batch_norm": False}},
            )
        },
        actions=("Box",),
        small=NEW_NOISE,
        on_device={"bounded_rewards": False},
        memory={
            "flashsac": Memory(
                {**SOFT_FROM_SEQUENCES, **NEW_NOISE, "target_entropy": -2.0, "bounded_rewards": False},
                in_a_box=True,
                steps=8_000,
                of_kind={
                    "gru": {"lr": [[0, 1e-2], [3_000, 1e-3], [8_000, 1e-4]], "target_entropy": -3.0},
                    "attention": {"lr": [[0, 3e-3], [8_000, 1e-4]], "batch_norm": False, "unit_norm_weights": False},
                },
            )
        },
        comparisons={
            ", empty shards": Comparison({**CLIPPED, "tau": 0.1, "num_atoms": 11}, {"empty": True}, "fast"),
            ", squared errors, plain networks": Comparison(
                {
                    **CLIPPED,
                    "tau": 0.1,
                    "categorical_critic": False,
                    "batch_norm": False,
                    "unit_norm_weights": False,
                    "bounded_rewards": False,
                },
                {"empty": True},
            ),
            ", sequences of a GRU, empty shards": Comparison(
                {**CLIPPED, "tau": 0.1, "num_atoms": 11},
                {"memory": "gru", "minibatch_size": 4, "empty": True},
                "faults",
            ),
            # Batch statistics are those of rows and images.
            ", mirror images, empty shards": Comparison(
                {**CLIPPED, "tau": 0.1, "num_atoms": 11, "symmetry": mirror, "symmetry_loss_coeff": 0.5},
                {"empty": True},
            ),
            ", a symmetric network, empty shards": Comparison(
                {**CLIPPED, "tau": 0.1, "num_atoms": 11, "symmetry": mirror}, {**SYMMETRIC, "empty": True}
            ),
        },
        refused=(
            *OF_SAMPLES,
            ("training.v_max", -5.0, "must be a finite number above v_min"),
            ("training.policy_freq", 2, "'policy_delay'?"),
            ("training.n_atoms", 2, "'num_atoms'?"),
        ),
        limits={"policy_delay": COUNT, "num_atoms": "at least 2", "noise_repeat": COUNT, "target_std": "above 0"},
        lacks={},
        walks=("Box",),
    ),
    "distillation": AlgorithmCase(
        product={"lr": 1e-2, "train_batch_size": 128, "minibatch_size": 32, "num_epochs": 4},
        probes={},
        takes_batches=False,
        has_values=False,
        teacher=cloned,
    ),
    "bc": AlgorithmCase(
        product=OFFLINE_PRODUCT,
        probes={},
        memory={"bc": Memory()},
        comparisons={
            ", empty shards": Comparison({**CLIPPED, "entropy_coeff": 0.01}, {"empty": True}),
            ", sequences of an LSTM, empty shards": Comparison(
                {**CLIPPED, "entropy_coeff": 0.01}, {"memory": "lstm", "minibatch_size": 4, "empty": True}, "faults"
            ),
        },
        updates={"lr": 1e-2},
        refused=(
            *OF_SAMPLES,
            ("training.loss", "l1", "'log_prob', 'mse'"),
            ("environment.normalize_rewards", True, "is not allowed for bc"),
            ("environment.frame_stack", 2, "is not allowed for bc"),
            ("framework.compile", True, "is not allowed for bc"),
        ),
        has_values=False,
        imitates=True,
    ),
    "marwil": AlgorithmCase(
        product={**OFFLINE_PRODUCT, "beta": 4.0, "moving_average_sqd_adv_norm_start": 1.0, "max_weight": 20.0},
        probes={},
        memory={
            "marwil": Memory(
                {"beta": 4.0, "moving_average_sqd_adv_norm_start": 1.0, "max_weight": 20.0}, parts={"gru": "fast"}
            )
        },
        comparisons={
            ", empty shards": Comparison(
                {**CLIPPED, "moving_average_sqd_adv_norm_update_rate": 0.1}, {"empty": True}, "fast"
            ),
            ", sequences of a GRU, empty shards": Comparison(
                {**CLIPPED, "moving_average_sqd_adv_norm_update_rate": 0.1},
                {"memory": "gru", "minibatch_size": 4, "empty": True},
            ),
            ", episodes, sequences of a GRU": Comparison(
                CLIPPED, {"source": "episodes", "memory": "gru", "minibatch_size": 4}, "faults"
            ),
        },
        updates={"lr": 1e-2},
        refused=OF_SAMPLES,
        limits={"beta": "at least 0", "max_weight": "above 0", "moving_average_sqd_adv_norm_update_rate": SHARE},
    ),
    "cql": AlgorithmCase(
        product={
            **OFFLINE_PRODUCT,
            "lr": 3e-3,
            "actor_lr": 3e-3,
            "num_actions": 4,
            "min_q_weight": 0.2,
            "tau": 0.05,
        },
        probes={},
        actions=("Discrete", "Box"),
        memory={
            "cql": Memory({**CONSERVATIVE, "target_entropy": 0.02}),
            "cql_box": Memory({**CONSERVATIVE, "target_entropy": -2.0}, in_a_box=True),
        },
        comparisons={
            ", learned weight, empty shards": Comparison(
                {**CLIPPED, "num_actions": 3, "lagrangian": True, "bc_iters": 10}, {"empty": True}
            ),
            ", discrete, empty shards": Comparison(CLIPPED, {"in_a_box": False, "empty": True}, "faults"),
            ", sequences of a GRU": Comparison(
                {**CLIPPED, "num_actions": 3}, {"memory": "gru", "minibatch_size": 4}, "faults"
            ),
            ", mirror images": Comparison({**CLIPPED, "num_actions": 3, "symmetry": mirror}, part="faults"),
            ", a symmetric network": Comparison({**CLIPPED, "num_actions": 3, "symmetry": mirror}, SYMMETRIC, "faults"),
        },
        refused=OF_SAMPLES,
        limits={"num_actions": COUNT, "temperature": "above 0", "bc_iters": "at least 0", "min_q_weight": "at least 0"},
        optimizers=frozenset({"alpha", "multiplier"}),
        lacks={"Box": "critics, sample"},
    ),
    "iql": AlgorithmCase(
        product={**OFFLINE_PRODUCT, "beta": 10.0, "tau": 0.05, "expectile": 0.8},
        probes={},
        actions=("Discrete", "Box"),
        memory={
            "iql": Memory(IMPLICIT, parts={"lstm": "long"}),
            "iql_box": Memory({**IMPLICIT, "beta": 20.0}, in_a_box=True),
        },
        comparisons={
            ", discrete": Comparison(CLIPPED, {"in_a_box": False}, "faults"),
            ", empty shards": Comparison(CLIPPED, {"empty": True}),
            ", sequences of an LSTM, empty shards": Comparison(
                CLIPPED, {"memory": "lstm", "minibatch_size": 4, "empty": True}
            ),
        },
        refused=OF_SAMPLES,
        limits={"expectile": "above 0 and below 1", "exp_adv_max": "above 0", "beta": "at least 0"},
        lacks={"Box": "critics, value_head"},
        is_fast=True,
    ),
    "td3_bc": AlgorithmCase(
        product={**OFFLINE_PRODUCT, "lr": 3e-3, "tau": 0.05, "alpha": 20.0},
        probes={},
        actions=("Box",),
        memory={
            "td3_bc": Memory({"tau": 0.05, "alpha": 50.0, "target_noise": 0.05}, in_a_box=True, parts={"gru": "long"})
        },
        comparisons={
            ", empty shards": Comparison(CLIPPED, {"empty": True}),
            ", sequences of attention": Comparison(CLIPPED, {"memory": "attention", "minibatch_size": 4}, "faults"),
        },
        refused=OF_SAMPLES,
        limits={"alpha": "at least 0"},
        lacks={"Box": "critics, compute_actions"},
    ),
}


def takes(algorithm: str, actions: str) -> bool:
    """Return whether the algorithm acts in spaces of this kind, `discrete` or `box`."""
    return actions.title() in ALGORITHM_CASES[algorithm].actions


def taking(*actions: str) -> tuple[str, ...]:
    """Return the algorithms that take exactly these kinds of actions."""
    return tuple(name for name in NAMES if [kind for kind in SPACES if takes(name, kind)] == list(actions))


def where(holds: Callable[[AlgorithmCase], object]) -> tuple[str, ...]:
    """Return the names of the algorithms of which something holds."""
    return tuple(name for name in NAMES if holds(ALGORITHM_CASES[name]))


def class_of(algorithm: str) -> type[AlgorithmConfig]:
    """Return the class of an algorithm's configuration."""
    return type(get_config(algorithm))


def has_option(algorithm: str, option: str) -> bool:
    """Return whether an algorithm's training section has this option."""
    return option in get_config(algorithm).training.declared()


def named(table: str) -> Iterator[tuple[str, str, Any]]:
    """Yield `(name of the case, algorithm, case)` of a field that has several of each algorithm."""
    for algorithm, case in ALGORITHM_CASES.items():
        for name, each in getattr(case, table).items():
            yield name, algorithm, each


FAST = where(lambda case: case.is_fast)
"""algorithms for which the fast suite runs what is the same for all"""


def exploring_by(kind: str) -> tuple[str, ...]:
    """Return the algorithms of whose kinds of exploration this one is the first."""
    return tuple(name for name in NAMES if class_of(name).explorations[:1] == (kind,))


FROM_RETURNS = next(name for name in OFFLINE if ALGORITHM_CASES[name].has_state_values)
"""the offline algorithm that learns from the returns of whole episodes"""
WITH_ATOMS = next(name for name in OFF_POLICY if "num_atoms" in ALGORITHM_CASES[name].small)
"""an algorithm that learns the distribution of returns on atoms"""
