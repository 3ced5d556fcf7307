"""Families of measurements, and what builds the program of a record of each."""

from __future__ import annotations

from ipuxla.calibration import kernels, networks, products, stencils, training
from ipuxla.calibration.parameters import NotModelled
from ipuxla.calibration.records import Record
from ipuxla.calibration.work import Builder, Work

__all__ = ["FAMILIES", "NotModelled", "Work"]


def _library(record: Record) -> Work:
    raise NotModelled("the record does not state which program its bound is of")


FAMILIES: dict[str, Builder] = {
    "cast": kernels.cast,
    "conv": stencils.convolution,
    "copy": kernels.copy,
    "elementwise": kernels.elementwise,
    "exchange": kernels.exchange,
    "exchange_inter_ipu": stencils.between_ipus,
    "gemm_device": products.on_a_device,
    "gemm_on_tile": products.on_a_tile,
    "linalg": _library,
    "memory": networks.memory,
    "memory_stream": kernels.memory_stream,
    "model_inference": networks.inference,
    "model_training": training.training,
    "norm": kernels.norm,
    "random": kernels.random_numbers,
    "random_numbers": kernels.random_numbers,
    "rng": kernels.random_numbers,
    "reduction": kernels.reduction,
    "softmax": kernels.softmax,
    "sparse_matmul": products.sparse,
    "stencil": stencils.stencil,
    "stencil_multi_ipu": stencils.stencil,
    "sync": kernels.sync,
    "tutorial": _library,
}
"""Family -> builder of a record's program."""
