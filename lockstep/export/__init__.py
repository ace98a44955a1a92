"""Portable artefacts of a policy: raw observation in, the environment's action out, in ONNX or torch's own form."""

from lockstep.export.artifact import Origin, export_policies, exported_in
from lockstep.export.exported import ExportedPolicy, load_export, read_card
from lockstep.export.graph import ExportError

__all__ = ["ExportError", "ExportedPolicy", "Origin", "export_policies", "exported_in", "load_export", "read_card"]
