"""The ``Target``: every number the compiler, the cost model and the allocator may know about a machine.

Numbers live in data files (see ``load``); here are their meanings, units and legal ranges. Attribute access
gives the plain number, ``basis`` says where it comes from. A target is immutable and hashable, and travels as
plain data inside an executable.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
from collections.abc import Mapping
from typing import Any

from tiles.cached import cached_property
from tiles.errors import InvalidTarget, Unsupported
from tiles.files import JsonObject, is_a, is_mapping, is_tuple
from tiles.numerics import dtypes
from tiles.numerics.shared import fields_of
from tiles.target import load
from tiles.target.basis import Basis
from tiles.target.quantity import MemoryRegion, Provenance, Quantity, quantities, quantity

_SET_BY_USER = Provenance(Basis.ASSUMED, "set by the user")
_WIDTHS = {"float16": "fp16", "float32": "fp32", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8"}


@dataclasses.dataclass(frozen=True, repr=False)
class Target:
    """A machine of one or more IPUs. Tiles are numbered globally: IPU number x ``tiles_per_ipu`` + tile."""

    name: str
    """Short name, as ``named`` takes it; a changed target's name ends in "*"."""
    description: str = quantity("text")
    """The product's name."""

    # --- size
    num_tiles: int = quantity("tiles", high=2**20)
    """Tiles of all IPUs together."""
    num_ipus: int = quantity("IPUs", high=2**12)
    """IPUs; each has ``num_tiles / num_ipus`` tiles."""
    workers_per_tile: int = quantity("workers", high=64)
    """Hardware threads that run vertices; the supervisor comes on top."""
    worker_issue_interval_cycles: int = quantity("cycles", high=64)
    """Tile cycles between two instructions of one worker."""
    clock_hz: float = quantity("Hz", low=1e3, high=1e12)
    """Tile clock."""

    # --- tile memory
    bytes_per_tile: int = quantity("bytes", low=1024, high=2**31, multiple_of=16)
    """Memory of one tile: the sum of its regions."""
    memory_regions: tuple[MemoryRegion, ...] = quantity("regions")
    """Regions of a tile's memory by address."""
    memory_element_bytes: int = quantity("bytes", low=8, high=2**31, multiple_of=8)
    """Size of a memory bank; accesses of one cycle to one bank conflict."""
    memory_latency_cycles: int = quantity("cycles", high=1024)
    """Load-to-use latency, hidden by the rotation of the workers."""
    data_path_bytes: int = quantity("bytes", high=64)
    """Width of one load or store."""
    load_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Loads outside the interleaved region."""
    interleaved_load_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Loads from the interleaved region."""
    store_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Stores."""
    max_accesses_per_instruction: int = quantity("accesses", high=16)
    """Loads and stores that one instruction can make together."""
    memcpy_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Copies inside a tile."""
    atomic_store_bytes: int = quantity("bytes", high=64)
    """Smallest store without read-modify-write."""
    rpt_count_max: int = quantity("iterations", high=2**32)
    """Longest zero-overhead repeat loop."""
    num_stride_bits: int = quantity("bits", high=64)
    """Width of the signed stride of a strided access."""

    # --- arithmetic
    float_vector_width: int = quantity("elements", high=64)
    """float32 elements that one instruction handles."""
    half_vector_width: int = quantity("elements", high=64)
    """float16 elements that one instruction handles."""
    fp16_in_fp16_out_conv_units: int = quantity("units/tile", low=0, high=1024)
    """Convolution units for float16 with float16 partials."""
    fp16_in_fp32_out_conv_units: int = quantity("units/tile", low=0, high=1024)
    """Convolution units for float16 with float32 partials."""
    fp32_in_fp32_out_conv_units: int = quantity("units/tile", low=0, high=1024)
    """Convolution units for float32."""
    fp8_in_fp16_out_conv_units: int = quantity("units/tile", low=0, high=1024)
    """Convolution units for 8-bit floats with float16 partials."""
    fp16_macs_per_cycle: int = quantity("MAC/cycle/tile", low=0, high=2**16)
    """Peak multiply-adds with float16 operands."""
    fp32_macs_per_cycle: int = quantity("MAC/cycle/tile", low=0, high=2**16)
    """Peak multiply-adds with float32 operands."""
    fp8_macs_per_cycle: int = quantity("MAC/cycle/tile", low=0, high=2**16)
    """Peak multiply-adds with 8-bit float operands."""
    conv_unit_pipeline_depth: int = quantity("stages", high=64)
    """Weights per convolution unit over its input elements per cycle."""
    conv_unit_coeff_load_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Rate at which weights enter the convolution units from ordinary memory."""
    interleaved_conv_unit_coeff_load_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """The same from interleaved memory, with 128-bit loads."""
    conv_unit_coefficient_bytes: int = quantity("bytes/tile", low=0, high=2**20)
    """Size of the convolution units' weight store, shared by all workers."""
    fp16_conv_unit_input_elems_per_cycle: int = quantity("elements/cycle", high=64)
    """float16 inputs that a convolution unit takes per cycle."""
    fp32_conv_unit_input_elems_per_cycle: int = quantity("elements/cycle", high=64)
    """float32 inputs that a convolution unit takes per cycle."""
    fp8_conv_unit_input_elems_per_cycle: int = quantity("elements/cycle", high=64)
    """8-bit float inputs that a convolution unit takes per cycle."""
    fp16_weights_per_conv_unit: int = quantity("weights", high=1024)
    """float16 weights that a convolution unit holds."""
    fp32_weights_per_conv_unit: int = quantity("weights", high=1024)
    """float32 weights that a convolution unit holds."""
    fp8_weights_per_conv_unit: int = quantity("weights", high=1024)
    """8-bit float weights that a convolution unit holds."""
    slic_window: int = quantity("elements", high=64)
    """Kernel width that the SLIC instruction handles."""
    supports_fp8: bool = quantity("flag")
    """Whether the machine has 8-bit floats."""

    # --- exchange and sync
    exchange_bytes_per_cycle: int = quantity("bytes/cycle", high=1024)
    """Bytes a tile can send, and at the same time receive, per cycle."""
    exchange_send_max_words: int = quantity("words", high=2**20)
    """Words that one send instruction sends."""
    exchange_continued_send_max_words: int = quantity("words", high=2**20)
    """Words that one more send instruction adds to a run."""
    exchange_base_write_cycles: int = quantity("cycles", low=0, high=1024)
    """Cycles of an exchange phase in which a tile writes the base of the addresses it sends from, or receives at."""
    exchange_header_bytes: int = quantity("bytes/message", low=0, high=1024)
    """Bytes added to each message on chip."""
    exchange_phase_overhead_cycles: int = quantity("cycles", low=0, high=10**6)
    """Entry cost of an exchange phase on top of the sync."""
    tiles_per_shared_exchange_bus: int = quantity("tiles", high=64)
    """Neighbouring tiles that can borrow each other's exchange lanes."""
    tiles_per_supertile: int = quantity("tiles", high=64)
    """Tiles of one physical group."""
    internal_sync_cycles: int = quantity("cycles", low=0, high=10**6)
    """Sync of one IPU's tiles."""
    global_sync_cycles: int = quantity("cycles", low=0, high=10**7)
    """Sync of several IPUs."""
    max_ipu_sync_delay_cycles: int = quantity("cycles", low=0, high=10**6)
    """Longest time a sync signal takes inside one IPU."""
    min_ipu_sync_delay_cycles: int = quantity("cycles", low=0, high=10**6)
    """Shortest time a sync signal takes inside one IPU."""

    # --- vertices, code and control
    supervisor_vertex_overhead_cycles: int = quantity("cycles", low=0, high=10**6)
    """Supervisor's share of a vertex that all workers run together."""
    supervisor_branch_stall_cycles: int = quantity("cycles", low=0, high=10**6)
    """Supervisor branch, launch, sync or register write."""
    worker_launch_cycles: int = quantity("cycles", low=0, high=10**6)
    """Launch of the workers."""
    local_copy_call_cycles: int = quantity("cycles", low=0, high=10**6)
    """Fixed cost of a small copy inside a tile, launch and rendezvous included."""
    instruction_bytes: int = quantity("bytes", high=64)
    """Size of an instruction."""
    pointer_bytes: int = quantity("bytes", high=8)
    """Size of a pointer in vertex state."""
    worker_stack_bytes: int = quantity("bytes", low=0, high=2**20)
    """Stack of one worker."""
    supervisor_stack_bytes: int = quantity("bytes", low=0, high=2**20)
    """Stack of the supervisor."""
    control_code_bytes_per_step: int = quantity("bytes/step", low=0, high=2**20)
    """Supervisor code for one step of a program."""

    # --- links
    ipu_link_ports: int = quantity("ports", low=0, high=1024)
    """IPU-Links of one IPU."""
    ipu_link_bytes_per_second: float = quantity("bytes/s", low=0)
    """All IPU-Links of one IPU, both directions together."""
    ipu_link_efficiency: float = quantity("ratio", low=0, high=1)
    """Share of the link rate left for payload."""
    sync_hop_seconds: float | None = quantity("s", low=0, high=1, optional=True)
    """Latency of one hop of an external sync."""
    host_link: str = quantity("text")
    """Kind of the link to the host."""
    host_link_bytes_per_second: float = quantity("bytes/s", low=0)
    """Host link, both directions together."""
    host_read_packet_bytes: int = quantity("bytes/packet", high=2**20)
    """Most bytes of a packet that a tile receives from the host."""
    host_write_packet_bytes: int = quantity("bytes/packet", high=2**20)
    """Most bytes of a packet that a tile sends to the host."""
    host_packet_header_bytes: int = quantity("bytes/packet", low=0, high=2**10)
    """Bytes that a tile holds for the header of a packet."""
    host_slice_bytes: int = quantity("bytes", low=4, high=2**20, multiple_of=4)
    """Most bytes that a tile exchanges with the host between two syncs; what it receives is copied from there."""
    host_exchange_code_bytes_per_step: int = quantity("bytes/step", low=0, high=2**20)
    """Exchange code on every tile for one copy of a stream."""
    streaming_memory_bytes: int | None = quantity("bytes/machine", low=0, optional=True)
    """Largest memory outside the IPUs that remote buffers can use, per machine."""
    streaming_memory_bytes_per_second: float | None = quantity("bytes/s/machine", low=0, optional=True)
    """Rate of that memory, per machine."""

    provenance: tuple[tuple[str, Provenance], ...] = ()
    """Basis and source of each field; read it through ``basis``."""

    def __post_init__(self) -> None:
        """Check every field, then what they mean together."""
        for field, legal in fields_of_target().items():
            object.__setattr__(self, field, legal.check(field, getattr(self, field)))
        if not is_a(self.name, str) or not self.name:
            raise InvalidTarget("a target needs a name", location="name", got=repr(self.name))
        if set(dict(self.provenance)) != set(fields_of_target()):
            raise InvalidTarget("a target needs the provenance of each field", location="provenance")
        self._check_tiles()
        self._check_memory()

    # --- making targets

    @classmethod
    def named(cls, name: str) -> Target:
        """Return the target of a name ("gc200") or of a data file's path ("my_target.json").

        Raises:
          UnknownTarget: there is none; lists those there are.
          InvalidTarget: the data file is malformed or states something impossible.
        """
        found, leaves = load.resolve(name)
        for field, leaf in leaves.items():
            legal = _legal(field, location=found)
            if leaf.unit != legal.unit:
                raise InvalidTarget(
                    f"field {field!r} of target {found!r} is in another unit",
                    location=field,
                    expected=legal.unit,
                    got=leaf.unit,
                )
        missing = sorted(set(fields_of_target()) - set(leaves))
        if missing:
            raise InvalidTarget(
                f"target {found!r} does not state {', '.join(missing)}",
                try_='add the fields, or "extends" a target that has them',
            )
        return cls._make(found, {f: leaf.value for f, leaf in leaves.items()}, _provenance_of(leaves))

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tiles together."""
        return self.num_tiles * self.bytes_per_tile

    def replace(self, **changes: Any) -> Target:
        """Return this target with fields changed; those become ASSUMED, "set by the user".

        Memory regions follow ``bytes_per_tile`` in proportion and ``num_tiles`` follows ``num_ipus``, unless
        both are given; ``bytes_per_tile`` follows ``memory_regions``.

        Raises:
          InvalidTarget: a field is unknown or its value impossible.
        """
        name = changes.pop("name", self.name if self.name.endswith("*") or not changes else f"{self.name}*")
        for field, value in changes.items():
            changes[field] = _legal(field, location=self.name).check(field, value)
        changes = self._with_consequences(changes)
        values = {field: getattr(self, field) for field in fields_of_target()} | changes
        provenance = dict(self.provenance) | dict.fromkeys(changes, _SET_BY_USER)
        return self._make(name, values, provenance)

    @classmethod
    def from_data(cls, data: object) -> Target:
        """Return the target that ``to_data`` gave.

        Raises:
          InvalidTarget: the data is malformed or of another schema.
        """
        if not is_mapping(data) or data.get("schema") != load.SCHEMA or set(data) != _DATA_KEYS:
            raise InvalidTarget(
                "this is not the data of a target", expected=f"{load.SCHEMA}: {sorted(_DATA_KEYS)}"
            )
        leaves = {field: load.Leaf.read(leaf, field) for field, leaf in data["fields"].items()}
        odd = sorted(set(leaves) ^ set(fields_of_target()))
        if odd:
            raise InvalidTarget(f"the data of target {data['name']!r} lacks or adds {', '.join(odd)}")
        return cls._make(data["name"], {f: leaf.value for f, leaf in leaves.items()}, _provenance_of(leaves))

    def to_data(self) -> JsonObject:
        """Return this target as plain data, ready for JSON: ``from_data`` gives it back."""
        fields = {}
        for field, legal in fields_of_target().items():
            value = getattr(self, field)
            if field == "memory_regions":
                value = [dataclasses.asdict(region) for region in value]
            basis, unit, source = self.basis(field)
            fields[field] = {"value": value, "unit": unit, "basis": str(basis), "source": source}
            assert unit == legal.unit
        return {"schema": load.SCHEMA, "name": self.name, "fields": fields}

    @classmethod
    def _make(cls, name: str, values: Mapping[str, Any], provenance: Mapping[str, Provenance]) -> Target:
        """Return a target of checked field names; provenance is kept in the order of the fields."""
        ordered = tuple((field, provenance[field]) for field in fields_of_target())
        return cls(name=name, provenance=ordered, **values)

    # --- asking a target

    def basis(self, field: str) -> tuple[Basis, str, str]:
        """Return the basis, unit and source of a field.

        Raises:
          InvalidTarget: no such field.
        """
        legal = _legal(field, location=self.name)
        found = self._table[field]
        return found.basis, legal.unit, found.source

    @cached_property
    def _table(self) -> Mapping[str, Provenance]:
        """Provenance by field."""
        return types.MappingProxyType(dict(self.provenance))

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))

    def __hash__(self) -> int:
        """Return the hash of all fields, computed once: every question to the planner is asked of a target."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: a hash holds in one process only."""
        return fields_of(self)

    @property
    def tiles_per_ipu(self) -> int:
        """Return the number of tiles of one IPU."""
        return self.num_tiles // self.num_ipus

    def vector_width(self, dtype: str) -> int:
        """Return how many elements of ``dtype`` one instruction handles."""
        if dtype == "float32":
            return self.float_vector_width
        if dtype == "float16":
            return self.half_vector_width
        return max(1, self.data_path_bytes // dtypes.itemsize(dtype))

    def conv_units(self, dtype_in: str, dtype_out: str) -> int:
        """Return the convolution units per tile for operands and partials of the given dtypes; 0: none."""
        key = f"{_WIDTHS.get(dtype_in)}_in_{_WIDTHS.get(dtype_out)}_out_conv_units"
        return getattr(self, key) if key in fields_of_target() else 0

    def conv_unit_input_elems_per_cycle(self, dtype: str) -> int:
        """Return how many elements of ``dtype`` one convolution unit takes per cycle."""
        return self._by_width("conv_unit_input_elems_per_cycle", dtype)

    def weights_per_conv_unit(self, dtype: str) -> int:
        """Return how many weights of ``dtype`` one convolution unit holds."""
        return self._by_width("weights_per_conv_unit", dtype)

    def macs_per_cycle(self, dtype: str) -> int:
        """Return the peak multiply-adds per cycle and tile for operands of ``dtype``."""
        return self._by_width("macs_per_cycle", dtype)

    def peak_flops(self, dtype: str) -> float:
        """Return the peak of the whole machine in flop/s: two per multiply-add."""
        return 2.0 * self.num_tiles * self.macs_per_cycle(dtype) * self.clock_hz

    def seconds(self, cycles: float) -> float:
        """Return the duration of a number of tile cycles in seconds."""
        return cycles / self.clock_hz

    def region_of(self, address: int) -> MemoryRegion | None:
        """Return the memory region that holds an address, or None."""
        return next((r for r in self.memory_regions if r.base <= address < r.end), None)

    @property
    def code_memory_bytes(self) -> int:
        """Bytes per tile that code can run from, at least 1."""
        return max(1, sum(region.size_bytes for region in self.memory_regions if region.executable))

    def __repr__(self) -> str:
        """Return Python that makes this target: the known one that differs least, and what differs."""
        known = [Target.named(name) for name in load.known_names()]
        changes = {base.name: self._changes_from(base) for base in known}
        base = min(known, key=lambda base: (self.name.rstrip("*") != base.name, len(changes[base.name])))
        shown = ", ".join(f"{field}={value!r}" for field, value in changes[base.name].items())
        return f"Target.named({base.name!r})" + (f".replace({shown})" if shown else "")

    def _changes_from(self, base: Target) -> JsonObject:
        """Return what ``base.replace`` takes to become this target, without what follows from the rest."""
        fields = [f for f in fields_of_target() if getattr(self, f) != getattr(base, f)]
        changes = {field: getattr(self, field) for field in fields}
        for follower, leader in (("memory_regions", "bytes_per_tile"), ("num_tiles", "num_ipus")):
            if follower in changes and leader in changes:
                rest = {field: value for field, value in changes.items() if field != follower}
                if getattr(base.replace(**rest), follower) == changes[follower]:
                    changes = rest
        renamed = self.name not in (base.name, f"{base.name}*" if changes else base.name)
        return {**changes, **({"name": self.name} if renamed else {})}

    def beyond_known(self) -> dict[str, float]:
        """Return the largest known value of every field in which this target is larger than every known chip."""
        known = [Target.named(name) for name in load.known_names()]
        found: dict[str, float] = {}
        for field in fields_of_target():
            values = [getattr(target, field) for target in known]
            numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
            own = getattr(self, field)
            if numbers and isinstance(own, int | float) and own > max(numbers):
                found[field] = max(numbers)
        return found

    def describe(self) -> str:
        """Return a table of all fields: value, unit, basis and source; below it those beyond every known chip."""
        rows = [(f, _shown(getattr(self, f)), *self.basis(f)) for f in fields_of_target()]
        widths = [max(len(str(row[i])) for row in rows) for i in range(4)]
        lines = [f"target {self.name}"]
        for field, value, basis, unit, source in rows:
            cells = (
                field.ljust(widths[0]),
                value.rjust(widths[1]),
                unit.ljust(widths[3]),
                basis.ljust(widths[2]),
            )
            lines.append("  ".join((*cells, source)))
        for field, most in self.beyond_known().items():
            lines.append(f"{field} is beyond every known chip, which have {_shown(most)} at most")
        return "\n".join(lines)

    # --- inside

    def _by_width(self, quantity_name: str, dtype: str) -> int:
        """Return the field of a quantity that depends on the operands' width."""
        if dtype not in _WIDTHS:
            raise Unsupported(
                f"the convolution units of {self.name!r} take no {dtype}",
                expected=", ".join(_WIDTHS),
                got=dtype,
            )
        return getattr(self, f"{_WIDTHS[dtype]}_{quantity_name}")

    def _with_consequences(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Add the fields that follow from the changed ones."""
        derived: dict[str, Any] = {}
        if "num_ipus" in changes and "num_tiles" not in changes:
            derived["num_tiles"] = self.tiles_per_ipu * changes["num_ipus"]
        if "bytes_per_tile" in changes and "memory_regions" not in changes:
            derived["memory_regions"] = _scaled(self.memory_regions, changes["bytes_per_tile"])
        elif "memory_regions" in changes and "bytes_per_tile" not in changes:
            derived["bytes_per_tile"] = sum(region.size_bytes for region in changes["memory_regions"])
        return changes | derived

    def _check_tiles(self) -> None:
        """Check that the IPUs share the tiles evenly."""
        if self.num_tiles % self.num_ipus:
            raise InvalidTarget(
                f"target field 'num_tiles': {self.num_tiles} tiles cannot be shared by {self.num_ipus} IPUs",
                location="num_tiles",
                expected=f"a multiple of {self.num_ipus}",
                got=self.num_tiles,
            )

    def _check_memory(self) -> None:
        """Check that the regions lie one after the other, in whole data-path words, and add up."""
        total = sum(region.size_bytes for region in self.memory_regions)
        if total != self.bytes_per_tile:
            raise InvalidTarget(
                f"target field 'memory_regions': regions add up to {total:,} bytes, not to bytes_per_tile",
                location="memory_regions",
                expected=f"{self.bytes_per_tile:,} bytes",
                got=f"{total:,} bytes",
            )
        previous_end = 0
        for region in self.memory_regions:
            if region.base < previous_end or region.base % 8 or region.size_bytes % 8:
                raise InvalidTarget(
                    f"target field 'memory_regions': region {region.name!r} at {region.base:#x} "
                    f"of {region.size_bytes:,} bytes overlaps, is out of order or is no multiple of 8 bytes",
                    location="memory_regions",
                    expected=f"a base of at least {previous_end:#x}; base and size multiples of 8 bytes",
                )
            previous_end = region.end
        if previous_end > 2**32:
            raise InvalidTarget(
                f"target field 'memory_regions': addresses reach {previous_end:#x}, beyond 32 bits",
                location="memory_regions",
            )


_DATA_KEYS = {"schema", "name", "fields"}


@functools.cache
def fields_of_target() -> Mapping[str, Quantity]:
    """Return every field of a target except its name, with its unit and legal range."""
    return types.MappingProxyType(quantities(Target))


def _legal(field: str, location: str) -> Quantity:
    """Return what a field may hold.

    Raises:
      InvalidTarget: no such field.
    """
    known = fields_of_target()
    if field in known:
        return known[field]
    close = difflib.get_close_matches(field, known, n=3, cutoff=0.5)
    raise InvalidTarget(
        f"a target has no field {field!r}",
        location=location,
        try_=f"did you mean {', '.join(close)}?" if close else "Target.describe() lists the fields",
    )


def _provenance_of(leaves: Mapping[str, load.Leaf]) -> dict[str, Provenance]:
    """Return the provenance of each leaf."""
    return {field: leaf.provenance for field, leaf in leaves.items()}


def _scaled(regions: tuple[MemoryRegion, ...], bytes_per_tile: int) -> tuple[MemoryRegion, ...]:
    """Return regions resized in proportion, in multiples of 16 bytes except the last, with gaps kept."""
    total = sum(region.size_bytes for region in regions)
    scaled: list[MemoryRegion] = []
    left = bytes_per_tile
    base = regions[0].base
    for index, region in enumerate(regions):
        is_last = index == len(regions) - 1
        size = left if is_last else region.size_bytes * bytes_per_tile // total // 16 * 16
        gap = 0 if not index else region.base - regions[index - 1].end
        scaled.append(dataclasses.replace(region, base=base + gap, size_bytes=size))
        base, left = base + gap + size, left - size
    return tuple(scaled)


def _shown(value: Any) -> str:
    """Return a value as the table shows it."""
    if value is None:
        return "unknown"
    if is_tuple(value):
        return ", ".join(f"{r.name} {r.base:#x}+{r.size_bytes:,}" for r in value)
    if isinstance(value, bool) or isinstance(value, str):
        return str(value)
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
