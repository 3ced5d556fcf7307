"""Users' codelets outside their process: exported to StableHLO, carried in executables, called inside any trace.

A codelet's meaning, splits and cost are the interface of ``tiles.graph.Codelet``; here is what an executable needs of
one whose code is not installed where the file is loaded.
"""

from tiles.codelets.exported import ExportedCodelet, exported_from_data
from tiles.codelets.exporting import export_codelet, is_exported

__all__ = ["ExportedCodelet", "export_codelet", "exported_from_data", "is_exported"]
