"""Policy classes of `RecurrentPPO` for `RecurrentPPO(MlpLstmPolicy, env)`."""

from lockstep_sb3.common.base_class import BasePolicy


class MlpLstmPolicy(BasePolicy):
    """Policy with an LSTM for observations that are vectors."""


class CnnLstmPolicy(BasePolicy):
    """Policy with an LSTM for images."""


class MultiInputLstmPolicy(BasePolicy):
    """Policy with an LSTM for observations that are dicts."""


RecurrentActorCriticPolicy = MlpLstmPolicy
RecurrentActorCriticCnnPolicy = CnnLstmPolicy
RecurrentMultiInputActorCriticPolicy = MultiInputLstmPolicy
