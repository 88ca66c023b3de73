"""Loads libweft. Its header, weft.h, is the only declaration of its calls: cffi reads it."""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import Any, Iterable

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent  # the root of the repository, if this is a checkout


def _candidates(name: str, *folders: Path) -> Iterable[Path]:
    for folder in folders:
        yield from sorted(folder.glob(name))


def _find_library() -> Path:
    """The path of the library: WEFT_LIBRARY, else in the wheel, else in the build folder."""
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return Path(given)
    wheel = HERE / "prefix"
    for path in _candidates("libweft.so.0", wheel / "lib", *wheel.glob("lib/*"), SOURCE / "build"):
        return path
    raise ImportError(
        f"libweft.so.0 not found in {wheel} or {SOURCE / 'build'}: build it "
        "(ninja -C build weft_shared), install the package (pip install .), or name it in "
        "WEFT_LIBRARY")


def _find_header() -> Path:
    for path in (HERE / "prefix/include/weft/weft.h", SOURCE / "api/include/weft/weft.h"):
        if path.exists():
            return path
    raise ImportError(f"weft.h not found beside {HERE}")


def _declarations(header: str) -> str:
    """The declarations of weft.h as cffi reads them: without directives and macros."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r'#ifdef __cplusplus.*?#endif', "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return text.replace("WEFT_API ", "")


ffi = FFI()
ffi.cdef(_declarations(_find_header().read_text(encoding="utf-8")))
lib: Any = ffi.dlopen(str(_find_library()))


class Status(enum.IntEnum):
    """The kind of a failure; 1 to 4 are also exit statuses of the command."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NO = 3
    INFEASIBLE = 4
    ORDER = 5


class WeftError(Exception):
    """The exception of a failed call. `status` is the kind of failure."""

    def __init__(self, status: Status, message: str):
        super().__init__(message)
        self.status = status

    @classmethod
    def of(cls, error: Any) -> "WeftError":
        """Makes the exception from a weft_error that a call has filled."""
        return cls(Status(error.status), text(error.message))


def version() -> str:
    """The version of the library."""
    return text(lib.weft_version())


def text(pointer: Any) -> str:
    return ffi.string(pointer).decode("utf-8", "replace")


def call(function: Any, *arguments: Any) -> Any:
    """Calls a function whose last argument is a weft_error; raises WeftError if it fails."""
    error = ffi.new("weft_error *")
    result = function(*arguments, error)
    if result is False or result == ffi.NULL:
        raise WeftError.of(error)
    return result


def owned(pointer: Any, close: Any, keep: Any = None) -> Any:
    """A handle that closes the object when Python no longer refers to it.

    `keep` is an object that the handle needs; it stays alive until the handle is closed.
    """
    def destroy(handle: Any, keep: Any = keep) -> None:
        close(handle)

    return ffi.gc(pointer, destroy)


def strings(words: Iterable[str]) -> tuple[int, Any, list[Any]]:
    """An array of C strings: its length, the array, and the strings, which must stay alive."""
    kept = [ffi.new("char[]", word.encode()) for word in words]
    return len(kept), ffi.new("char *[]", kept) if kept else ffi.new("char *[1]"), kept


def words_of(file: str | os.PathLike[str] | None, settings: dict[str, Any]) -> list[str]:
    """Words of a command line: a job file, and a flag for every setting.

    True becomes --flag and False --no-flag; a setting that is None is left out. Other values become
    text.
    """
    words = [] if file is None else [os.fspath(file)]
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={value}")
    return words
