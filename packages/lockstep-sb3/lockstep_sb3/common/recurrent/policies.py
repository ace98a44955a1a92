"""Policy classes of `RecurrentPPO` for `RecurrentPPO(MlpLstmPolicy, env)`."""

from lockstep_sb3.common.policies import NetworkPolicy


class MlpLstmPolicy(NetworkPolicy):
    """Policy with an LSTM for observations that are vectors."""


class CnnLstmPolicy(NetworkPolicy):
    """Policy with an LSTM for images."""


class MultiInputLstmPolicy(NetworkPolicy):
    """Policy with an LSTM for observations that are dicts."""


RecurrentActorCriticPolicy = MlpLstmPolicy
RecurrentActorCriticCnnPolicy = CnnLstmPolicy
RecurrentMultiInputActorCriticPolicy = MultiInputLstmPolicy
