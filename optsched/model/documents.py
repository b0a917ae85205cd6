"""Documents in and out: instances, suites and results as JSON (interfaces.md)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, FailFast, Field, Tag, TypeAdapter

from optsched.model.batch_documents import batch_documents, lists
from optsched.model.cluster import CacheRules, Link, Role, ViewAge
from optsched.model.cost import CostModel
from optsched.model.domain import MAX_MACHINES, MAX_REQUESTS, Index, Name, Percent, Picoseconds, domain, replace
from optsched.model.errors import InputError, Said
from optsched.model.instance import Instance, Limits, MachineGroup, Request, Rules
from optsched.model.json_text import parse_json
from optsched.model.objectives import Objective
from optsched.model.prefixes import read_prefixes
from optsched.model.restrictions import Restrictions
from optsched.model.result import Badge, Result, Status
from optsched.model.schedule import Batch, Indices, Move, Pairs, Schedule
from optsched.uncollected import uncollected

INSTANCE_FORMAT = "optsched-instance/1"
SUITE_FORMAT = "optsched-suite/1"
RESULT_FORMAT = "optsched-result/1"

ProfileLookup = Callable[[str], CostModel]
"""Finds a cost profile by name; raises `InputError` for an unknown one."""

MAX_BYTES = 4 * 1024**3
"""The most that is read of a file: a result with every run of every batch has up to 2.4 kB for each request."""
MAX_UNPACKED_BYTES = 64 * 1024**2
MAX_UNPACKED_LISTS = 5_000_000
"""Bytes, and lists and objects, that a packed file may hold however small it is: reading takes 300 bytes for ``[]``."""
MAX_RATIO, MAX_LISTS_RATIO = 64, 8
"""How many of them it may hold for each of its own bytes beyond that; our results hold at most 57 and 5."""

MAX_KEYS, MAX_KEYS_RATIO = 100_000, 64
"""Keys that a document may hold, and for each object beyond that: to name an unknown one takes a kilobyte."""

_PIECE = 1024**2
_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


@domain
class _RequestEntry(Request):
    count: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] = 1


class _ProfileName(BaseModel):
    model_config = _STRICT
    profile: str
    swap_out_kv: Picoseconds | None = None
    swap_in_kv: Picoseconds | None = None
    swap_overlap: Percent | None = None
    cpu_batch: Picoseconds | None = None
    cpu_request: Picoseconds | None = None

    def cost(self, profiles: ProfileLookup) -> CostModel:
        found = {name: value for name, value in _fields(self, _OVERHEADS).items() if value is not None}
        return replace(profiles(self.profile), **found)


def _cost_kind(value: object) -> str:
    return "<profile>" if isinstance(value, dict) and "profile" in value else "<coefficients>"


_Cost = Annotated[
    Annotated[_ProfileName, Tag("<profile>")] | Annotated[CostModel, Tag("<coefficients>")],
    Discriminator(_cost_kind),
]


def _cost_of(given: _ProfileName | CostModel, profiles: ProfileLookup) -> CostModel:
    """Return a cost model; an unknown profile is one of the field ``cost``."""
    if isinstance(given, CostModel):
        return given
    try:
        return given.cost(profiles)
    except InputError as error:
        raise error.within("cost") from None


class _MachineEntry(BaseModel):
    model_config = _STRICT
    name: Name | None = None
    count: Annotated[int, Field(ge=1, le=MAX_MACHINES)] = 1
    role: Role = Role.BOTH
    limits: Limits | None = None
    rules: Rules | None = None
    cost: _Cost | None = None
    cache: CacheRules | None = None

    def build(self, profiles: ProfileLookup) -> MachineGroup:
        cost = None if self.cost is None else _cost_of(self.cost, profiles)
        return MachineGroup(self.count, self.role, self.limits, self.rules, cost, self.name, self.cache)


class _InstanceBody(BaseModel):
    model_config = _STRICT
    format: Literal["optsched-instance/1"]
    name: Name
    limits: Limits
    rules: Rules
    cost: _Cost
    replicas: int = 1
    machines: Annotated[list[_MachineEntry], Field(max_length=MAX_MACHINES), FailFast()] = Field(default_factory=list)
    links: Link | None = None
    prefixes: dict[str, Any] = Field(default_factory=dict)
    cache: CacheRules = CacheRules()
    view: ViewAge = ViewAge()
    requests: Annotated[list[_RequestEntry], Field(min_length=1), FailFast()]

    @property
    def counted(self) -> int:
        """Requests that ``count`` adds to those that are listed."""
        return sum(entry.count - 1 for entry in self.requests)

    def build(self, profiles: ProfileLookup) -> Instance:
        cost = _cost_of(self.cost, profiles)
        groups = []
        for position, machine in enumerate(self.machines):
            try:
                groups.append(machine.build(profiles))
            except InputError as error:
                raise error.within(f"machines[{position}]") from None
        roles = {group.role for group in groups}
        if self.links is None and Role.PREFILL in roles and len(roles) > 1:
            expected = "base_ps and kv_ps of the links over which requests leave machines of role prefill"
            raise InputError("links", Said("nothing"), expected)
        total = sum(entry.count for entry in self.requests)
        if total > MAX_REQUESTS:
            raise InputError("requests", Said(f"{total} requests"), f"at most {MAX_REQUESTS}")
        requests: list[Request] = []
        for entry in self.requests:
            request = Request(**{name: getattr(entry, name) for name in _REQUEST_FIELDS})
            requests.extend([request] * entry.count)
        return Instance(
            self.name,
            self.limits,
            self.rules,
            cost,
            tuple(requests),
            self.replicas,
            tuple(groups),
            self.links or Link(),
            read_prefixes(self.prefixes),
            self.cache,
            self.view,
        )


class _SuiteBody(BaseModel):
    model_config = _STRICT
    format: Literal["optsched-suite/1"]
    name: Name
    description: Name
    instances: Annotated[list[_InstanceBody], Field(min_length=1), FailFast()]


class _MoveEntry(BaseModel):
    model_config = _STRICT
    request: Index
    source: Annotated[Index, Field(alias="from")]
    target: Annotated[Index, Field(alias="to")]
    start_ps: Picoseconds
    end_ps: Picoseconds
    drop: Pairs = ()
    stages_ps: Annotated[tuple[Picoseconds, ...], FailFast()] = ()
    aborted: bool = False

    def build(self) -> Move:
        return Move(**_fields(self, _MOVE_FIELDS))


class _ScheduleBody(BaseModel):
    model_config = _STRICT
    batches: Annotated[tuple[Batch, ...], FailFast()]
    routes: Indices = ()
    moves: Annotated[tuple[_MoveEntry, ...], FailFast()] = ()

    def build(self) -> Schedule:
        return Schedule(self.batches, self.routes, tuple(move.build() for move in self.moves))


class _ResultBody(BaseModel):
    model_config = _STRICT
    format: Literal["optsched-result/1"]
    instance: _InstanceBody
    instance_sha256: Name
    method: Name
    objective: Objective
    status: Status
    badge: Badge
    value: int | None
    bound: int | None
    gap: float | None
    runtime_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    seed: int
    versions: dict[Name, Name]
    schedule: _ScheduleBody | None
    metrics: dict[str, Any] | None
    certificate: dict[str, Any] | None
    message: str | None = None
    restrictions: Restrictions = Restrictions()
    time_limit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    options: dict[Name, Name] = Field(default_factory=dict)
    found_by: dict[Name, Name] = Field(default_factory=dict)

    def claim(self, profiles: ProfileLookup) -> ClaimedResult:
        try:
            instance = self.instance.build(profiles)
        except InputError as error:
            raise error.within("instance") from None
        fields = _fields(self, _RESULT_FIELDS)
        schedule = None if self.schedule is None else self.schedule.build()
        return ClaimedResult(Result(instance=instance, schedule=schedule, **fields), self.instance_sha256, self.gap)


@domain
class Suite:
    """A named list of instances."""

    name: Name
    description: Name
    instances: tuple[Instance, ...]


@domain
class ClaimedResult:
    """A result as a document states it: nothing in it has been checked but its form.

    Parameters
    ----------
    result
        The document's content.
    instance_sha256, gap
        What the document says of them; `Result` would compute them.
    """

    result: Result
    instance_sha256: str
    gap: float | None


_REQUEST_FIELDS = (
    *("input", "output", "arrival_ps", "weight", "slo_ttft_ps", "slo_e2e_ps", "id", "predicted_output", "prefix"),
)
_MOVE_FIELDS = ("request", "source", "target", "start_ps", "end_ps", "drop", "stages_ps", "aborted")
_DEFAULT_REQUEST = Request(1, 1)
_OVERHEADS = ("swap_out_kv", "swap_in_kv", "swap_overlap", "cpu_batch", "cpu_request")
"""Coefficients of what happens outside the GPU, 0 unless they are given; a profile's can be given beside its name."""
_UNRESTRICTED = Restrictions()
_INSTANCE, _SUITE = TypeAdapter(_InstanceBody), TypeAdapter(_SuiteBody)
_RESULT = TypeAdapter(_ResultBody)
_RESULTS = TypeAdapter(
    Annotated[list[_ResultBody], Field(min_length=1), FailFast()], config=ConfigDict(defer_build=True)
)
_TAGS = frozenset({"<profile>", "<coefficients>"})
_Body = TypeVar("_Body")


# Reading ---------------------------------------------------------------------------------------------------


def read_bytes(source: str | Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``; ``-`` is standard input.

    A file that holds more than `MAX_BYTES`, or a packed one that holds more than the larger of `MAX_UNPACKED_BYTES` and
    `MAX_RATIO` times its size, or of lists and objects likewise, raises `InputError` as soon as that is read.
    """
    name = str(source)
    try:
        if name == "-":
            data = _read_at_most(MAX_BYTES, _standard_input())
        else:
            with Path(name).open("rb") as file:
                data = _read_at_most(MAX_BYTES, file)
    except (OSError, ValueError) as error:
        raise InputError("", Said(_reason(error)), "a readable file", name) from None
    if data is None:
        raise InputError("", Said(f"more than {MAX_BYTES} bytes"), f"at most {MAX_BYTES}", name)
    if not name.endswith(".gz"):
        return data
    most = min(MAX_BYTES, max(MAX_UNPACKED_BYTES, MAX_RATIO * len(data)))
    most_lists = max(MAX_UNPACKED_LISTS, MAX_LISTS_RATIO * len(data))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = _read_at_most(most, packed, most_lists)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError("", Said(_reason(error)), "a file packed by gzip", name) from None
    if unpacked is None:
        found = Said(f"{len(data)} bytes that unpack to more than {most}, or to more than {most_lists} lists")
        raise InputError("", found, "a packed file that holds less; what is larger has to be unpacked", name)
    return unpacked


def read_text(source: str | Path) -> str:
    """Return the text of a file as `read_bytes` finds it, in UTF-8, without a byte order mark."""
    try:
        return read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("", Said(error.reason), "text in UTF-8", str(source)) from None


def _standard_input() -> BinaryIO:
    if sys.stdin is None:  # Python's word for a closed one
        raise OSError("standard input is closed")
    return sys.stdin.buffer


def _read_at_most(most: int, stream: BinaryIO | gzip.GzipFile, most_lists: float = inf) -> bytes | None:
    """Read a stream to its end; None if it holds more bytes, or lists and objects, of which not many more are read."""
    pieces, size, lists = [], 0, 0
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        lists += piece.count(b"[") + piece.count(b"{")
        if size > most or lists > most_lists:
            return None
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    """Say what the system, or a library, says of a file."""
    return getattr(error, "strerror", None) or str(error)


def _parse(adapter: TypeAdapter[_Body], data: bytes) -> _Body:
    keys, most = data.count(b":"), MAX_KEYS + MAX_KEYS_RATIO * data.count(b"{")
    if keys > most:
        raise InputError("document", Said(f"about {keys} keys"), f"at most {most} for as many objects as it has")
    with uncollected():
        return parse_json(adapter, data, _TAGS)


def parse_instance(data: bytes, profiles: ProfileLookup) -> Instance:
    """Read an instance document; a wrong one raises `InputError`."""
    return _parse(_INSTANCE, data).build(profiles)


def parse_suite(data: bytes, profiles: ProfileLookup) -> Suite:
    """Read a suite document: ``{"format": "optsched-suite/1", "name", "description", "instances": […]}``."""
    body = _parse(_SUITE, data)
    _require_few("instances", body.instances)
    instances: list[Instance] = []
    names: set[str] = set()
    for position, entry in enumerate(body.instances):
        try:
            instances.append(entry.build(profiles))
            if entry.name in names:
                raise InputError("name", entry.name, "a name that no other instance of the suite has")
            names.add(entry.name)
        except InputError as error:
            raise error.within(f"instances[{position}]") from None
    return Suite(body.name, body.description, tuple(instances))


def parse_results(data: bytes, profiles: ProfileLookup) -> list[ClaimedResult]:
    """Read a result document, or a list of them."""
    several = re.match(rb"\s*\[", data) is not None
    bodies = _parse(_RESULTS, data) if several else [_parse(_RESULT, data)]
    _require_few("document", [body.instance for body in bodies])
    found = []
    for position, body in enumerate(bodies):
        try:
            found.append(body.claim(profiles))
        except InputError as error:
            raise (error.within(f"[{position}]") if several else error) from None
    return found


def _require_few(field: str, bodies: Sequence[_InstanceBody]) -> None:
    """Raise `InputError` if a short document makes too many requests of its instances together."""
    counted = sum(body.counted for body in bodies)
    if counted > MAX_REQUESTS:
        raise InputError(field, Said(f"{counted} requests added by count"), f"at most {MAX_REQUESTS} in a document")


_RESULT_FIELDS = (
    "method", "objective", "status", "badge", "value", "bound", "runtime_s", "seed", "versions", "metrics",
    "certificate", "message", "restrictions", "time_limit_s", "options", "found_by",
)  # fmt: skip


# Writing ---------------------------------------------------------------------------------------------------


def _fields(obj: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in names}


def cost_document(cost: CostModel) -> dict[str, Any]:
    """Return the coefficients as a document."""
    names = ("base", "token", "pieces", "decode_kv", "decode_req", "prefill_sq", "prefill_kv", "prefill_req")
    overheads = {name: value for name, value in _fields(cost, _OVERHEADS).items() if value}
    return _fields(cost, names) | {"pieces": [list(piece) for piece in cost.pieces]} | overheads


def _request_documents(requests: tuple[Request, ...]) -> Iterator[dict[str, Any]]:
    for request, run in groupby(requests):
        entry = {
            name: getattr(request, name)
            for name in _REQUEST_FIELDS
            if name in {"input", "output"} or getattr(request, name) != getattr(_DEFAULT_REQUEST, name)
        }
        count = sum(1 for _ in run)
        yield entry | ({"count": count} if count > 1 else {})


def _limits_document(limits: Limits) -> dict[str, Any]:
    return _fields(limits, ("kv_tokens", "batch_tokens", "prefill_tokens", "batch_requests", "kv_block"))


def _rules_document(rules: Rules) -> dict[str, Any]:
    return _fields(rules, ("hybrid", "chunked_prefill", "eviction", *rules.added))


def _cache_document(cache: CacheRules) -> dict[str, Any]:
    return {"mode": cache.mode.value, "share_in_batch": cache.share_in_batch}


def _machines_document(group: MachineGroup) -> dict[str, Any]:
    """Return an entry of the list of machines: what is not the instance's own."""
    parts = {
        "name": group.name,
        "count": group.count if group.count > 1 else None,
        "role": None if group.role is Role.BOTH else group.role.value,
        "limits": None if group.limits is None else _limits_document(group.limits),
        "rules": None if group.rules is None else _rules_document(group.rules),
        "cost": None if group.cost is None else cost_document(group.cost),
        "cache": None if group.cache is None else _cache_document(group.cache),
    }
    return {name: part for name, part in parts.items() if part is not None}


def instance_document(instance: Instance) -> dict[str, Any]:
    """Return the instance as a document, its coefficients spelled out and equal neighbours counted."""
    document = {
        "format": INSTANCE_FORMAT,
        "name": instance.name,
        "limits": _limits_document(instance.limits),
        "rules": _rules_document(instance.rules),
        "cost": cost_document(instance.cost),
        "replicas": instance.replicas,
    }
    if instance.machine_groups:
        document["machines"] = [_machines_document(group) for group in instance.machine_groups]
    if instance.links != Link() or any(group.role is Role.PREFILL for group in instance.machine_groups):
        added = [name for name in ("layerwise", "kv_bytes") if getattr(instance.links, name)]
        document["links"] = _fields(instance.links, ("base_ps", "kv_ps", "exclusive", "live", "stages", *added))
    if instance.cache != CacheRules():
        document["cache"] = _cache_document(instance.cache)
    if instance.view != ViewAge():
        several = ("routers",) if instance.view.routers > 1 else ()
        document["view"] = _fields(instance.view, ("every_ps", "delay_ps", *several))
    if instance.prefixes.nodes:
        document["prefixes"] = instance.prefixes.document()
    return document | {"requests": list(_request_documents(instance.requests))}


def suite_document(suite: Suite, profile: str) -> dict[str, Any]:
    """Return the suite as a document whose instances name the cost profile that they are on."""
    return {
        "format": SUITE_FORMAT,
        "name": suite.name,
        "description": suite.description,
        "instances": [instance_document(entry) | {"cost": {"profile": profile}} for entry in suite.instances],
    }


def instance_sha256(instance: Instance) -> str:
    """Return the hash that identifies a problem: its document without names, keys sorted, no spaces."""
    bare = instance
    if any(request.id is not None for request in instance.requests) or any(
        group.name is not None for group in instance.machine_groups
    ):
        nameless = tuple(request if request.id is None else replace(request, id=None) for request in instance.requests)
        groups = tuple(group if group.name is None else replace(group, name=None) for group in instance.machine_groups)
        bare = replace(instance, requests=nameless, machine_groups=groups)
    document = instance_document(bare) | {"name": ""}
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def restrictions_document(restrictions: Restrictions) -> dict[str, Any]:
    """Return what restricts; nothing for what does not."""
    fields = _fields(restrictions, ("forbid", "max_evictions", "max_batch", "order", "at_most"))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if value != getattr(_UNRESTRICTED, name)
    }


def _move_document(move: Move) -> dict[str, Any]:
    document = {"request": move.request, "from": move.source, "to": move.target}
    document |= {"start_ps": move.start_ps, "end_ps": move.end_ps}
    optional = {"drop": lists(move.drop), "stages_ps": list(move.stages_ps), "aborted": move.aborted}
    return document | {name: value for name, value in optional.items() if value}


def _schedule_document(schedule: Schedule) -> dict[str, Any]:
    document: dict[str, Any] = {"batches": batch_documents(schedule)}
    if schedule.routes:
        document["routes"] = list(schedule.routes)
    if schedule.moves:
        document["moves"] = [_move_document(move) for move in schedule.moves]
    return document


def result_document(result: Result) -> dict[str, Any]:
    """Return the result as a document (interfaces.md, Result document)."""
    schedule = None if result.schedule is None else _schedule_document(result.schedule)
    document: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "instance": instance_document(result.instance),
        "instance_sha256": instance_sha256(result.instance),
        "method": result.method,
        "objective": result.objective.value,
        "status": result.status.value,
        "badge": result.badge.value,
        "value": result.value,
        "bound": result.bound,
        "gap": result.gap,
        "runtime_s": result.runtime_s,
        "seed": result.seed,
        "versions": result.versions,
        "schedule": schedule,
        "metrics": result.metrics,
        "certificate": result.certificate,
    }
    if result.message is not None:
        document["message"] = result.message
    restrictions = restrictions_document(result.restrictions)
    if restrictions:
        document["restrictions"] = restrictions
    if result.time_limit_s is not None:
        document["time_limit_s"] = result.time_limit_s
    if result.options:
        document["options"] = result.options
    if result.found_by:
        document["found_by"] = result.found_by
    return document


def results_text(results: Result | Sequence[Result]) -> str:
    """Return the document of a result, or a list of those of several, as `dump` writes it."""
    with uncollected():
        document = result_document(results) if isinstance(results, Result) else [result_document(r) for r in results]
        return dump(document)


def dump(document: Any) -> str:
    """Write a document as JSON that people can read: a line for each entry of its lists of objects."""
    line = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode

    def lines(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
            body = ",\n".join(f"{inner}{line(key)}: {lines(item, inner)}" for key, item in value.items())
            return f"{{\n{body}\n{indent}}}"
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            nested = any(isinstance(item, dict) for entry in value for item in entry.values())
            body = ",\n".join(inner + (lines(item, inner) if nested else line(item)) for item in value)
            return f"[\n{body}\n{indent}]"
        return line(value)

    return lines(document, "") + "\n"


def write_text(target: str | Path, text: str) -> None:
    """Write a file whole or not at all (``.gz`` packs it); ``-`` is standard output.

    A file that stood there before stays until the new one is complete on disk. What is no file, such as
    ``/dev/null`` or a pipe, is written to and stays what it is; a link stays a link.
    """
    name = str(target)
    if name == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    data = text.encode()
    if name.endswith(".gz"):
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
            stream.write(data)
        data = packed.getvalue()
    try:
        check_writable(name)
        path = Path(name).resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace_file(path, data)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("", Said(_reason(error)), _WRITABLE, name) from None


_WRITABLE = "a file that can be written"


def check_writable(target: str | Path) -> None:
    """Raise `InputError` if it is clear beforehand that `write_text` will fail; ``-`` never does."""
    name = str(target)
    if not name:
        raise InputError("", name, "the name of a file, or - for standard output")
    try:
        if name != "-" and Path(name).is_dir():
            raise InputError("", Said("a folder"), _WRITABLE, name)
        if name != "-" and not Path(name).parent.is_dir():
            raise InputError("", Said("a folder that does not exist"), _WRITABLE, name)
    except OSError as error:
        raise InputError("", Said(_reason(error)), _WRITABLE, name) from None


def _replace_file(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".optsched-", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
