"""Policy classes of `MaskablePPO` for `MaskablePPO(MaskableActorCriticPolicy, env)`."""

from lockstep_sb3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

MaskableActorCriticPolicy = MlpPolicy
MaskableActorCriticCnnPolicy = CnnPolicy
MaskableMultiInputActorCriticPolicy = MultiInputPolicy
