"""Small systems for tests, as data."""

from __future__ import annotations

from typing import Any

from jax.sharding import AbstractMesh, AxisType

from tiles.target import System

STATED = {"basis": "ASSUMED", "source": "a test"}


def figure(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, **STATED}


def link(parallel: int = 1, rate: float = 1e9, efficiency: float = 1.0, latency: float | None = 1e-6) -> dict:
    return {
        "kind": "wire",
        "parallel": figure(parallel, "links"),
        "bytes_per_second": figure(rate, "bytes/s"),
        "efficiency": figure(efficiency, "ratio"),
        "latency_seconds": figure(latency, "s"),
    }


def node(ipus_each: int | None) -> dict:
    return {"kind": "box", "ipus_each": figure(ipus_each, "IPUs/node")}


def system_data(
    num_ipus: int, wiring: dict[str, dict], nodes: dict | None = None, links: dict | None = None
) -> dict:
    """Return the data of a system; links default to one kind, "wire"."""
    return {
        "schema": "ipuxla.system/1",
        "name": "toy",
        "description": "a test",
        "chip": "gc2",
        "num_ipus": num_ipus,
        "figures": {
            "ipus_per_machine": figure(num_ipus, "IPUs/machine"),
            "streaming_memory_bytes": figure(None, "bytes/machine"),
            "streaming_memory_bytes_per_second": figure(None, "bytes/s/machine"),
        },
        "nodes": nodes or {},
        "links": links or {"wire": link()},
        "wiring": {name: {**entry, **STATED} for name, entry in wiring.items()},
    }


def make(num_ipus: int, wiring: dict[str, dict], **rest: Any) -> System:
    return System.from_data(system_data(num_ipus, wiring, **rest))


def auto_mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> AbstractMesh:
    """Return a mesh along whose axes XLA chooses what nobody says. From JAX 0.11 on an ``AbstractMesh`` is explicit by default."""
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
