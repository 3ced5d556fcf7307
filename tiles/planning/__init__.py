"""Planning: recorded operations get plans, tensors layouts; nothing before or behind it knows by what policy."""

from tiles.planning.code_price import code_price_of
from tiles.planning.planner import Planner
from tiles.planning.policy import Policy, operation_of

__all__ = ["Planner", "Policy", "code_price_of", "operation_of"]
