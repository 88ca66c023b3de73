"""Weft from Python: plan, simulate and train one step of a large transformer.

    import weft

    job = weft.Job(model="llama3-8b", topology="dgx-h100", nodes=4, global_batch_size=256,
                   seq_length=8192, pipeline_model_parallel_size=4)
    step = job.simulate()
    step.seconds, step.mfu, step.report["overlap"]["bubble_fraction"]
    step.timeline.to_pandas()

Names and values of settings are those of `weft knobs` and of the command line. Every call checks
its arguments as the command does and raises `WeftError` with the same message. Units: seconds,
bytes, tokens. docs/python.md is the manual.
"""

from weft._jobs import Facts, Job, Numbers, Simulation
from weft._library import Status, WeftError, version
from weft._searches import Ranking, Strategy, plan, sweep
from weft._tables import Column, Table, knobs
from weft._training import Batches, Module, StateDict, StepResult, Tensor

__version__ = version()
__all__ = [
    "Batches", "Column", "Facts", "Job", "Module", "Numbers", "Ranking", "Simulation", "StateDict",
    "Status", "StepResult", "Strategy", "Table", "Tensor", "WeftError", "knobs", "plan", "sweep",
    "version",
]
