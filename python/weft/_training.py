"""Training step by step: the calls of Megatron-Core's DistributedDataParallel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft._jobs import Job
from weft._library import WeftError, call, ffi, lib, owned, text
from weft._tables import memory

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True)
class StepResult:
    """The results of a step (weft_step_result of weft.h)."""

    loss: float  # before the update: mean over all tokens of the global batch
    grad_norm: float  # before clipping
    skipped: bool  # the update was skipped, because the norm was not finite
    large: int  # buckets with a large norm (check_for_large_grads)


def _ids(tokens: Any, shape: tuple[int, ...], call_name: str) -> tuple[Any, Any]:
    """Token ids as int32 in C order, and their address. A wrong shape is a ValueError."""
    import numpy

    array = numpy.ascontiguousarray(tokens, dtype=numpy.int32)
    if array.shape != shape:
        raise ValueError(f"{call_name}: found ids of shape {array.shape}, wanted {shape}")
    return array, ffi.cast("int32_t *", array.ctypes.data)


class Batches:
    """The sequences of a token file, in the order in which `weft train` reads them."""

    def __init__(self, job: Job, path: str | os.PathLike[str], seed: int = 1,
                 shuffle: bool = True):
        self.job = job
        self._handle = owned(
            call(lib.weft_batches_open, job._handle, os.fspath(path).encode(), seed, shuffle),
            lib.weft_batches_close, keep=job)

    def read(self, position: int) -> "numpy.ndarray":
        """The global batch that begins at sequence `position`: (global_batch_size,
        seq_length + 1)."""
        import numpy

        facts = self.job.facts
        ids = numpy.empty((facts.global_batch_size, facts.seq_length + 1), numpy.int32)
        call(lib.weft_batches_read, self._handle, position,
             ffi.cast("int32_t *", ids.ctypes.data))
        return ids

    def read_micro(self, position: int, micro: int) -> "numpy.ndarray":
        """Microbatch `micro` of the global batch that begins at `position`: (replicas,
        micro_batch_size, seq_length + 1)."""
        import numpy

        facts = self.job.facts
        ids = numpy.empty((facts.replicas, facts.micro_batch_size, facts.seq_length + 1),
                          numpy.int32)
        call(lib.weft_batches_read_micro, self._handle, position, micro,
             ffi.cast("int32_t *", ids.ctypes.data))
        return ids


class Module:
    """Executes a job: all its ranks are threads of this process and compute real numbers.

        module = weft.Module(job)
        module.init_weights(seed=1)
        module.zero_grad_buffer()
        module.forward_backward(batches.read(0))
        module.finalize_model_grads()
        result = module.step(lr=1e-3)

    The order of calls is that of weft.h. A call at the wrong point raises WeftError with status
    ORDER, names the call that must be next, and changes nothing.
    """

    def __init__(self, job: Job, threads: int = 0, stress: int = 0):
        self.job = job
        options = ffi.new("weft_module_options *", {"threads": threads, "stress": stress})
        self._handle = owned(call(lib.weft_module_open, job._handle, options),
                             lib.weft_module_close, keep=job)

    @property
    def wants(self) -> str:
        """The call that is allowed next."""
        return text(lib.weft_module_wants(self._handle))

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return lib.weft_module_steps(self._handle)

    def init_weights(self, seed: int = 1) -> None:
        """Draws initial weights, which depend on the seed only."""
        lib.weft_module_init_weights(self._handle, seed)

    def broadcast_params(self) -> None:
        """Sends every parameter of replica 0 to the other replicas."""
        call(lib.weft_module_broadcast_params, self._handle)

    def zero_grad_buffer(self) -> None:
        """Begins a step."""
        call(lib.weft_module_zero_grad_buffer, self._handle)

    def forward(self, tokens: Any) -> None:
        """The forward of the next microbatch: (replicas, micro_batch_size, seq_length + 1) ids."""
        facts = self.job.facts
        shape = (facts.replicas, facts.micro_batch_size, facts.seq_length + 1)
        array, address = _ids(tokens, shape, "forward")
        call(lib.weft_module_forward, self._handle, address)
        del array

    def backward(self) -> None:
        """The backward of the next microbatch whose forward has run."""
        call(lib.weft_module_backward, self._handle)

    def forward_backward(self, tokens: Any) -> None:
        """All microbatches of all stages, in the order of the schedule: a whole batch of ids."""
        array, address = self._batch(tokens, "forward_backward")
        call(lib.weft_module_forward_backward, self._handle, address)
        del array

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward calls inside this context only accumulate gradients."""
        call(lib.weft_module_no_sync_begin, self._handle)
        try:
            yield
        finally:
            call(lib.weft_module_no_sync_end, self._handle)

    def start_grad_sync(self) -> None:
        """Launches the gradient collectives that no backward has launched."""
        call(lib.weft_module_start_grad_sync, self._handle)

    def finish_grad_sync(self) -> None:
        """Waits for all gradient collectives."""
        call(lib.weft_module_finish_grad_sync, self._handle)

    def finalize_model_grads(self) -> None:
        """Completes the gradients: waits for their collectives, and sums tied embeddings."""
        call(lib.weft_module_finalize_model_grads, self._handle)

    def scale_gradients(self, factor: float) -> None:
        """Multiplies every gradient by a factor."""
        call(lib.weft_module_scale_gradients, self._handle, factor)

    def step(self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95),
             eps: float = 1e-8, weight_decay: float = 0.1) -> StepResult:
        """Ends the step: computes the norm, clips, updates with AdamW, and gathers weights."""
        adam = ffi.new("weft_adam *", {"lr": lr, "beta1": betas[0], "beta2": betas[1],
                                       "epsilon": eps, "weight_decay": weight_decay})
        out = ffi.new("weft_step_result *")
        call(lib.weft_module_step, self._handle, adam, out)
        return StepResult(out.loss, out.grad_norm, out.skipped, out.large)

    def evaluate(self, tokens: Any) -> float:
        """Returns the loss of a whole batch, and changes neither weights nor gradients."""
        array, address = self._batch(tokens, "evaluate")
        loss = ffi.new("double *")
        call(lib.weft_module_evaluate, self._handle, address, loss)
        del array
        return loss[0]

    def state_dict(self, prefix: str = "", keep_vars: bool = False) -> "StateDict":
        """The tensors of the whole model by name."""
        return StateDict(self, lib.weft_module_state_dict, prefix, keep_vars)

    def state_dict_for_save_checkpoint(self, prefix: str = "",
                                       keep_vars: bool = False) -> "StateDict":
        """The tensors of the whole model by name, with fp32 master weights as values."""
        return StateDict(self, lib.weft_module_state_dict_for_save_checkpoint, prefix, keep_vars)

    def load_state_dict(self, tensors: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Copies arrays into the weights of all ranks that hold them.

        Without `strict`, tensors with known names are copied, and a message about the others is
        returned.
        """
        import numpy

        kept = []
        given = ffi.new("weft_tensor[]", max(len(tensors), 1))
        for row, (name, values) in zip(given, tensors.items()):
            array = numpy.ascontiguousarray(values, dtype=numpy.float32)
            if array.ndim not in (1, 2):
                raise ValueError(f"{name}: found {array.ndim} dimensions, wanted 1 or 2")
            label = ffi.new("char[]", name.encode())
            kept.append((array, label))
            row.name = label
            row.shape = [array.shape[0], array.shape[1] if array.ndim == 2 else 1]
            row.data = ffi.cast("float *", array.ctypes.data)
        error = ffi.new("weft_error *")
        if not lib.weft_module_load_state_dict(self._handle, given, len(tensors), strict, error):
            raise WeftError.of(error)
        del kept
        return [text(error.message)] if error.message[0] != b"\0" else []

    def save_checkpoint(self, folder: str | os.PathLike[str], keep: int = 0, position: int = 0,
                        seed: int = 1) -> None:
        """Writes a checkpoint that `weft train --load` resumes from, under any strategy."""
        call(lib.weft_module_save_checkpoint, self._handle, os.fspath(folder).encode(), keep,
             position, seed)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> tuple[int, int]:
        """Loads a checkpoint; returns the position and the seed of its batches."""
        position, seed = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        call(lib.weft_module_load_checkpoint, self._handle, os.fspath(path).encode(), position,
             seed)
        return position[0], seed[0]

    def import_safetensors(self, path: str | os.PathLike[str]) -> None:
        """Reads weights under the names of Hugging Face."""
        call(lib.weft_module_import_safetensors, self._handle, os.fspath(path).encode())

    def export_safetensors(self, path: str | os.PathLike[str]) -> None:
        """Writes weights under the names of Hugging Face."""
        call(lib.weft_module_export_safetensors, self._handle, os.fspath(path).encode())

    def _batch(self, tokens: Any, name: str) -> tuple[Any, Any]:
        facts = self.job.facts
        return _ids(tokens, (facts.global_batch_size, facts.seq_length + 1), name)


class Tensor:
    """A tensor of the model, whose parts may be on several ranks."""

    def __init__(self, owner: "StateDict", index: int):
        face = lib.weft_state_dict_at(owner._handle, index)
        self._owner, self._index = owner, index
        self.name, self.dtype = text(face.name), text(face.dtype)
        self.shape = tuple(face.shape[i] for i in range(face.n_dims))
        self.size: int = face.elements

    def __repr__(self) -> str:
        return f"<weft.Tensor {self.name} {self.dtype} {self.shape}>"

    def numpy(self) -> "numpy.ndarray":
        """The values, gathered from the ranks into a new fp32 array."""
        return self._read(lib.weft_state_dict_read)

    def grad(self) -> "numpy.ndarray":
        """The gradient, complete after finalize_model_grads; needs keep_vars."""
        return self._read(lib.weft_state_dict_read_grad)

    def data(self, rank: int = 0) -> "numpy.ndarray | None":
        """A view of the tensor in the memory of a rank, without a copy.

        None if the rank does not hold it whole. bf16 values are a view of uint16. The view may be
        written if the state dict has keep_vars.
        """
        address = lib.weft_state_dict_data(self._owner._handle, self._index, rank)
        if address == ffi.NULL:
            return None
        kind = {"fp32": "float32", "bf16": "uint16"}[self.dtype]
        size = self.size * (4 if self.dtype == "fp32" else 2)
        view = memory(self._owner, address, size, self._owner.keep_vars).view(kind)
        return view.reshape(self.shape)

    def _read(self, function: Any) -> "numpy.ndarray":
        import numpy

        values = numpy.empty(self.shape, numpy.float32)
        call(function, self._owner._handle, self._index, 0, self.size,
             ffi.cast("float *", values.ctypes.data))
        return values


class StateDict(Mapping[str, Tensor]):
    """The tensors of a module by name: a list of references, which copies nothing."""

    def __init__(self, module: Module, make: Any, prefix: str, keep_vars: bool):
        self.keep_vars = keep_vars
        self._handle = owned(make(module._handle, prefix.encode(), keep_vars),
                             lib.weft_state_dict_close, keep=module)
        self._names = [text(lib.weft_state_dict_at(self._handle, i).name)
                       for i in range(lib.weft_state_dict_count(self._handle))]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> Tensor:
        index = lib.weft_state_dict_find(self._handle, name.encode())
        if index >= len(self._names):
            raise KeyError(name)
        return Tensor(self, index)
