"""Reports: what an executable costs and holds, what a run of it took, and the files to look at."""

from tiles.report.cost import cost_analysis
from tiles.report.links import Argument
from tiles.report.memory import memory_analysis
from tiles.report.profile import SCHEMA, Profile, profile, profile_schema
from tiles.report.tile_code import print_tile_code
from tiles.report.write import ReportNotWritten, write_report

__all__ = [
    "SCHEMA",
    "Argument",
    "Profile",
    "ReportNotWritten",
    "cost_analysis",
    "memory_analysis",
    "print_tile_code",
    "profile",
    "profile_schema",
    "write_report",
]
