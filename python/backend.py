"""Build backend of the wheel: setuptools, after CMake has built and installed the library.

The wheel contains the package, and under weft/prefix/ the library, its header and the bundled data.
It is made in a temporary folder, so only the build folder of the checkout is written.  No code
depends on the version of Python: the wheel fits every Python 3 on the same kind of machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("WEFT_BUILD_DIR", ROOT / "build")).resolve()

get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], cwd=ROOT, check=True)


def _write_version(prefix: Path) -> None:
    """Returns the version that CMakeLists.txt declares; pyproject.toml takes it from here."""
    declared = re.search(r"project\(weft VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    if not declared:
        raise SystemExit("CMakeLists.txt: found no project(weft VERSION ...)")
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "VERSION").write_text(declared[1] + "\n")


def _install_library(prefix: Path) -> None:
    """Builds the shared library and copies component `library` to the prefix."""
    if not (BUILD / "build.ninja").exists():
        _run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja")
    _run("cmake", "--build", BUILD, "--target", "weft_shared", "weft_bridge")
    _run("cmake", "--install", BUILD, "--prefix", prefix, "--component", "library")
    # A wheel cannot contain links: each link to the library is replaced by the file or removed.
    for link in [path for path in prefix.rglob("*.so*") if path.is_symlink()]:
        target = link.resolve()
        link.unlink()
        if not link.name.endswith(".so"):
            target.rename(link)


@contextlib.contextmanager
def _staged(with_library: bool) -> Iterator[None]:
    """Runs setuptools in a copy of the package."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, stage)
        shutil.copytree(ROOT / "python" / "weft", stage / "python" / "weft",
                        ignore=shutil.ignore_patterns("__pycache__"))
        prefix = stage / "python" / "weft" / "prefix"
        if with_library:
            _install_library(prefix)
        _write_version(prefix)
        os.chdir(stage)
        try:
            yield
        finally:
            os.chdir(before)


def prepare_metadata_for_build_wheel(metadata_directory: str,
                                     config_settings: dict | None = None) -> str:
    with _staged(with_library=False):
        return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: dict | None = None,
                metadata_directory: str | None = None) -> str:
    folder = str(Path(wheel_directory).resolve())
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    settings = dict(config_settings or {})
    settings["--build-option"] = ["--plat-name", platform, "--python-tag", "py3"]
    with _staged(with_library=True):
        return build_meta.build_wheel(folder, settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    raise SystemExit("the package is built from a checkout: pip install FOLDER, or pip wheel FOLDER")
