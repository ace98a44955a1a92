"""Portable artefacts of a policy, in ONNX or torch's own format: from a raw observation to the environment's action."""

from lockstep.export.artifact import Origin, export_policies, exported_in
from lockstep.export.exported import ExportedPolicy, load_export, read_card
from lockstep.export.graph import ExportError

__all__ = ["ExportError", "ExportedPolicy", "Origin", "export_policies", "exported_in", "load_export", "read_card"]
