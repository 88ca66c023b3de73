"""Jobs, their programs and their simulated steps."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from weft._library import call, ffi, lib, owned, strings, text, words_of
from weft._tables import Table


@dataclass(frozen=True)
class Facts:
    """Sizes of a job."""

    ranks: int
    replicas: int
    stages: int
    microbatches: int
    micro_batch_size: int
    global_batch_size: int
    seq_length: int
    vocab_size: int
    parameters: int
    planned_bytes: int  # memory of the rank that needs most


@dataclass(frozen=True)
class Numbers:
    """A predicted step in a few numbers (weft_prediction of weft.h)."""

    seconds: float
    tokens_per_s: float
    mfu: float
    compute_s: float
    exposed_communication_s: float
    bubble_s: float
    broadcast_params_s: float
    peak_bytes: int
    fits: bool


def fields(kind: Any, struct: Any) -> Any:
    """Makes a dataclass from the members of a C struct that have the same names."""
    return kind(**{name: getattr(struct, name) for name in kind.__dataclass_fields__})


class Job:
    """A model, a strategy, a cluster and a batch, planned and proved.

        weft.Job("job.ini", pipeline_model_parallel_size=4)
        weft.Job(model="gpt2-nano", gpus=2, overlap_grad_reduce=True)

    Settings override the file. True stands for the flag --NAME of the command, False for --no-NAME.
    The default topology is `cpu`, where ranks are threads of this machine.
    """

    def __init__(self, file: str | os.PathLike[str] | None = None, **settings: Any):
        self._open(words_of(file, settings))

    @classmethod
    def from_words(cls, words: list[str]) -> "Job":
        """A job from the words of a command line: ["job.ini", "--gpus", "2"]."""
        job = cls.__new__(cls)
        job._open(list(words))
        return job

    def _open(self, words: list[str]) -> None:
        self.words = tuple(words)
        n, array, kept = strings(words)
        self._handle = owned(call(lib.weft_job_open, n, array), lib.weft_job_close)
        del kept
        facts = ffi.new("weft_job_facts *")
        lib.weft_job_describe(self._handle, facts)
        self.facts: Facts = fields(Facts, facts)

    def __repr__(self) -> str:
        return f"<weft.Job {' '.join(self.words)}>"

    @property
    def notes(self) -> list[str]:
        """Warnings about the job, as the command prints them."""
        notes: list[str] = []
        while (note := lib.weft_job_note(self._handle, len(notes))) != ffi.NULL:
            notes.append(text(note))
        return notes

    def simulate(self, executor: str = "sim") -> "Simulation":
        """Simulates a step with SimGrid ("sim"), or by closed formulas ("clock")."""
        return Simulation(self, executor)

    def ops(self, role: int = 0) -> Table:
        """The ops of a pipeline stage, in a topological order."""
        return Table(call(lib.weft_job_ops, self._handle, role))

    def buffers(self, role: int = 0) -> Table:
        """The buffers of a pipeline stage, with addresses and lifetimes."""
        return Table(call(lib.weft_job_buffers, self._handle, role))

    def uses(self, role: int = 0) -> Table:
        """The uses of buffers: an op, a buffer, and whether the op reads or writes it."""
        return Table(call(lib.weft_job_uses, self._handle, role))

    def dependencies(self, role: int = 0) -> Table:
        """The dependencies: an op, and an op of another lane for which it waits."""
        return Table(call(lib.weft_job_dependencies, self._handle, role))

    def memory(self) -> Table:
        """Bytes at the memory peak of every pipeline stage, by kind of content."""
        return Table(call(lib.weft_job_memory, self._handle))


class Simulation:
    """A simulated step: numbers, the whole report, and the times of all ops."""

    def __init__(self, job: Job, executor: str):
        self.job = job
        self._handle = owned(call(lib.weft_job_simulate, job._handle, executor.encode()),
                             lib.weft_simulation_close, keep=job)
        self.numbers: Numbers = fields(Numbers, lib.weft_simulation_numbers(self._handle))

    def __repr__(self) -> str:
        return f"<weft.Simulation of {self.seconds:.4g} s, MFU {self.mfu:.1%}>"

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.numbers.seconds

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the printed peak of the GPUs."""
        return self.numbers.mfu

    @property
    def report(self) -> dict[str, Any]:
        """The document of `weft sim --json` (schema weft.sim/1), without its band."""
        return json.loads(text(lib.weft_simulation_json(self._handle)))

    @property
    def timeline(self) -> Table:
        """Begin and end of every op of the simulated ranks."""
        return Table(call(lib.weft_simulation_timeline, self._handle))
