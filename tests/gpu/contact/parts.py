"""The parts of both runs, in order, and the models that are trained.  Declared once: --list, the order of work,
the limits and the document follow from these tables."""
import dataclasses

# Ways to run Weft, best first: (word, environment, flags).  If a part fails one way, the next is tried, and the
# following parts begin with the way that worked.  `no-warpgroups`: without the kernels that only compute
# capability 9.0 has.  `fused`: attention of cuDNN.
WAYS = (("default", {}, []), ("no-warpgroups", {"WEFT_WARPGROUPS": "0"}, []),
        ("fused", {}, ["--attention-backend", "fused"]))
OWN_WAYS = (0, 1)  # for parts that are about Weft's own attention
PRODUCER = {"WEFT_WARPGROUPS": "producer"}  # kernels with a producer warp, without measuring whether they are faster


@dataclasses.dataclass
class Part:
    """kind: `plain`, or what main.py does besides running the command: `train`, `twin`, `kernels`, `lines`, `ncu`.
    limit: seconds.  least: MiB of GPU memory.  ways: indices of WAYS."""
    name: str
    runs: str
    limit: float
    command: list
    kind: str = "plain"
    model: str = ""
    env: dict = dataclasses.field(default_factory=dict)
    ways: tuple = (0,)
    least: int = 0


@dataclasses.dataclass
class Model:
    """A model that Weft and its PyTorch twin train with the same settings.  Weights, fp32 masters and all
    activations fit on the GPU, for Weft (`weft memory`) and for the twin.  least: with less MiB, it is skipped.
    llama2-7b fits in 139 GiB because it accumulates gradients in fp32 without a second copy; in 78 GiB, 14 of its
    layers fit, whose matmuls have the same shapes."""
    name: str
    micro: int
    batch: int
    sequence: int
    steps: int
    warm_up: int
    least: int
    layers: int = 0  # 0: all
    flags: tuple = ()

    def layer_flags(self):
        return ["--num-layers", str(self.layers)] if self.layers else []

    def tokens(self):
        return self.batch * self.sequence


def models(memory, tiny):
    if tiny:
        return [Model("gpt2-nano", 2, 2, 32, 3, 3, 0),
                Model("llama-nano", 1, 2, 32, 3, 3, 0, 1, ("--grad-reduce-in-fp32",))]
    large = memory >= 130000
    # 50,257 rows of the head are no multiple of 8: products of such rows are several times as slow
    padded = ("--make-vocab-size-divisible-by", "128")
    return [Model("gpt2", 64 if memory >= 75000 else 8, 64, 1024, 20, 3, 16000, flags=padded),
            Model("qwen2.5-1.5b", 16 if large else 8, 32, 1024, 10, 3, 75000),
            Model("llama2-7b", 1, 4, 4096, 3, 2, 75000, 0 if large else 14, ("--grad-reduce-in-fp32",))]


def job(m, model):
    return ["--model", model.name, "--micro-batch-size", str(model.micro), "--global-batch-size", str(model.batch),
            "--seq-length", str(model.sequence), "--topology", m.topology, "--gpus", "1", "--precision", "bf16",
            "--reduction-order", "fast", "--gradient-accumulation-fusion", *model.flags]


def train(m, model, steps):
    data = m.text if "nano" in model.name else m.data
    return [m.weft, "train", *job(m, model), *model.layer_flags(), "--executor", "cuda", "--data", data,
            "--deadline", "60", "--json", "--steps", str(steps)]


def twin(m, model, *flags):
    return ["python3", "-u", m.twin, "--config", m.models / f"{model.name}.json", "--seq-length", str(model.sequence),
            "--micro-batch-size", str(model.micro), "--global-batch-size", str(model.batch), "--steps",
            str(model.steps), "--warm-up", str(model.warm_up), "--peak-tflops", str(m.peak), *model.layer_flags(),
            *model.flags, *flags]


def timeline(results, model, kind):
    return ["--timeline", results / f"{model.name}.{kind}.json.gz"]


def first_contact(m):
    """Parts that describe the machine and test the kernels."""
    smi = "nproc; free -g; nvidia-smi; nvidia-smi -q -d CLOCK,POWER,PERFORMANCE"
    nano = [m.weft, "train", "--executor", "cuda", "--model", "llama-nano", "--topology", m.topology, "--gpus", "1",
            "--precision", "bf16", "--reduction-order", "fast", "--seq-length", "64", "--data", m.text, "--steps", "2",
            "--no-shuffle", "--json"]
    return [Part("device", "AB", 20, ["bash", "-ec", smi]),
            Part("libraries", "AB", 20, [m.bench, "--device"], "lines"),
            Part("ceilings", "AB", 30, [m.bench, "--ceilings"], "lines"),
            Part("test_gpu_kernels", "A", 75, [m.tests, "gpu_kernels"]),
            Part("nano", "AB", 30, nano, ways=(0, 1, 2)),
            *(Part(f"test_producer_{op}", "A", 30, [m.tests, "gpu_kernels", "--", op], env=PRODUCER)
              for op in ("attention", "attention_bwd", "matmul_swiglu"))]


def kernels(m, model, runs, name, *flags, env=None):
    return Part(f"{name}-{model.name}", runs, 60, [m.bench, "--json", "--model", model.name, *flags], "kernels",
                model.name, env or {}, least=model.least)


def closer(m, results, model):
    """Inputs of a prediction: rows of the cost table, from two layers, because all layers have the same kernels;
    and the timeline of a step."""
    ways = (0, 1, 2)
    return [Part(f"{model.name}-measure", "B", 60,
                 [m.weft, "measure", *job(m, model), "--executor", "cuda", "--num-layers", "2", "--output",
                  results / f".{model.name}.costs"], "costs", model.name, ways=ways, least=model.least),
            Part(f"{model.name}-timeline", "B", 80,
                 [*train(m, model, 4), "--attention-backend", "auto", *timeline(results, model, "timeline")], "train",
                 model.name, ways=ways, least=model.least)]


def trainings(m, results, all_models):
    """The first model with the measured choice of attention and with Weft's own, every kernel, the other
    models, counters of five kernels, what a prediction needs."""
    first, *others = all_models
    auto = ["--attention-backend", "auto"]

    def trained(model, name, limit, *flags, ways=(0, 1, 2), env=None):
        return Part(name, "B", limit, [*train(m, model, model.steps + model.warm_up), *flags], "train", model.name,
                    env or {}, ways, model.least)

    parts = [trained(first, first.name, 60, *auto), trained(first, f"{first.name}-flash", 45, ways=OWN_WAYS),
             trained(first, f"{first.name}-producer", 45, ways=(0,), env=PRODUCER)]
    parts += [kernels(m, model, "B", "kernels") for model in all_models]
    parts += [trained(model, model.name, 120, *auto) for model in others]
    parts += [Part(f"ncu-{op}", "B", 25, [m.bench, "--once", "--model", first.name, "--op", op], "ncu", first.name)
              for op in ("attention", "matmul_wgrad", "norm_bwd", "xent", "adam")]
    parts += closer(m, results, first)
    parts += [trained(model, f"{model.name}-gated", 120, *auto, "--fused-swiglu", "1") for model in others[:1]]
    twins = [Part(f"{model.name}-torch", "B", 120, twin(m, model, "--compile", "block"), "twin", model.name,
                  env=m.theirs, least=model.least) for model in all_models]
    parts += twins
    return parts + [
        trained(first, f"{first.name}-graph", 45, *auto, "--graph"),
        trained(first, f"{first.name}-cupti", 45, *auto, "--times", "cupti", *timeline(results, first, "cupti"))]


def all_parts(m, results, all_models, gpu_tests):
    """Every part of both runs, most important first: if the first are slow, no time is left for the last."""
    first = all_models[0]
    parts = first_contact(m)
    parts += [kernels(m, model, "A", "attention", "--op", "attention") for model in all_models]
    parts += [kernels(m, model, "A", "producer", "--op", "attention", env=PRODUCER) for model in all_models]
    parts += trainings(m, results, all_models)
    parts += [Part(f"test_{name}", "B", 60, [m.tests, name]) for name in gpu_tests if name != "gpu_kernels"]
    parts += [Part(f"{first.name}-torch-{word}", "B", 120, twin(m, first, *flags), "twin", first.name, env=m.theirs,
                   least=first.least)
              for word, flags in (("model", ("--compile", "model")), ("cudnn", ("--compile", "block", "--attention",
                                                                                 "cudnn")))]
    for model in all_models[1:]:
        parts += closer(m, results, model)
    return parts + [kernels(m, first, "B", "mma", "--op", "attention", env={"WEFT_WARPGROUPS": "0"})]
