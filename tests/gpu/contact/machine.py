"""The machine: its GPU as nvidia-smi describes it, our programs, and where their libraries are."""
import glob
import os
import pathlib
import shutil
import subprocess
import sysconfig

FIELDS = (("name", str), ("driver", str), ("memory_mib", float), ("sm_mhz_most", float),
          ("memory_mhz_most", float), ("power_limit_w", float))
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"

# word in the GPU's name: name of the results, topology with the GPU's numbers, TFLOP/s of bf16 in the vendor's
# data sheet.  The first row also stands for a machine without a GPU.
KINDS = {"H200": ("h200", "hgx-h200", 989), "H100": ("h100", "dgx-h100", 989),
         "B200": ("b200", "dgx-b200", 2250), "A100": ("a100", "dgx-a100", 312)}


def find_gpu():
    """The first GPU and None, or None and the reason."""
    if not shutil.which("nvidia-smi"):
        return None, "nvidia-smi not found, so there is no driver"
    try:
        said = subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], timeout=20,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except subprocess.TimeoutExpired:
        return None, "nvidia-smi did not answer within 20 s"
    line = (said.stdout.splitlines() or ["nvidia-smi lists no GPU"])[0]
    values = [v.strip() for v in line.split(",")]
    if said.returncode or len(values) != len(FIELDS):
        return None, line
    try:
        return {name: make(value) for (name, make), value in zip(FIELDS, values)}, None
    except ValueError:
        return None, f"nvidia-smi: found {line}"


def library_folders():
    """Folders of CUDA's libraries: those of the toolkit, and those installed with PyTorch."""
    home = os.environ.get("CUDA_HOME")
    folders = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", *([home + "/lib64"] if home else []),
               *sorted(glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/*/lib"))]
    wanted = ("libcublasLt.so.*", "libnccl.so.*", "libcupti.so.*", "libcudnn.so.*")
    return [f for f in folders if any(glob.glob(f"{f}/{w}") for w in wanted)]


class Machine:
    """`here`: the folder of run.sh, in the repository or in a folder made by pack.sh."""

    def __init__(self, here, build):
        self.gpu, self.why = find_gpu()
        name = self.gpu["name"] if self.gpu else "H200"
        self.stem, self.topology, self.peak = next((row for word, row in KINDS.items() if word in name),
                                                   ("gpu", "hgx-h200", 989))
        self.memory = self.gpu["memory_mib"] if self.gpu else 143771
        if (here / "bin/weft").exists():
            self.weft, self.tests, self.bench = (here / "bin" / n for n in ("weft", "test_gpu", "bench_cuda"))
            self.twin, self.models = here / "torch_twin.py", here / "share/weft/models"
            self.text, self.data = here / "LICENSE", here / "data/random.bin"
        else:
            root = here.parent.parent
            build = pathlib.Path(build) if build else root / "build"
            self.weft, self.tests, self.bench = build / "weft", build / "tests/test_gpu", build / "bench/bench_cuda"
            self.twin, self.models = root / "bench/torch_twin.py", root / "models"
            self.text = self.data = root / "LICENSE"
        # variables for programs of Weft; PyTorch finds its libraries without them
        paths = library_folders() + [p for p in (os.environ.get("LD_LIBRARY_PATH"),) if p]
        self.ours = {"LD_LIBRARY_PATH": ":".join(paths),
                     "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo")}
        self.theirs = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
