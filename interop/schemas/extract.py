#!/usr/bin/env python3
"""Prints the keys that a release of other software accepts, as rows of an X-list.

    git show core_v0.13.0:megatron/training/arguments.py | extract.py argparse > megatron_lm.def
    git show v0.2.2:torchtitan/config/job_config.py | extract.py JobConfig > torchtitan.def
    git show v0.18.3:FILE ... | extract.py deepspeed > deepspeed.def
    git show v0.4.0:FILE ... | extract.py automodel > automodel.def
    git show v1.12.0:FILE ... | extract.py accelerate > accelerate.def
    git show core_v0.13.0:FILE ... | extract.py core > megatron_core.def

The argument is one of these:
  argparse                                for calls of add_argument()
  deepspeed, automodel, accelerate, core  for the files that the first comment of the .def names,
                                          one after the other
  a dataclass                             whose members are dataclasses of the same file

The source is parsed and not executed: neither the software nor its dependencies are needed.
"""
import ast
import sys

KIND = {"int": "INT", "float": "REAL", "str": "TEXT", "bool": "BOOL"}


def literal(node):
    """The value of an expression of constants; the source text of any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
    constant = {"2 ** 32": 4294967296, "AttnBackend.auto": "auto",
                "list(AttnBackend)": ["flash", "fused", "unfused", "local", "auto"],
                "range(0, 3)": [0, 1, 2]}
    return constant.get(text, None)


def text_of(value):
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ",".join(text_of(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def print_row(macro, cells):
    """One row, on as many lines of at most 100 columns as it takes."""
    line, indent = f"{macro} (", " " * (len(macro) + 2)
    for i, cell in enumerate(cells):
        piece = cell + (")" if i + 1 == len(cells) else ", ")
        if len(line) + len(piece.rstrip()) > 100 and line.strip():
            print(line.rstrip())
            line = indent
        while len(line) + len(piece.rstrip()) > 100:
            cut = piece.rindex(" ", 0, 98 - len(line)) + 1
            print(line + piece[:cut] + '"')
            line, piece = indent, '"' + piece[cut:]
        line += piece
    print(line)


def argument_row(call):
    """ARG (name, kind, number of values, default, destination, choices)"""
    names = [literal(a) for a in call.args]
    given = {k.arg: literal(k.value) for k in call.keywords if k.arg not in ("help", "type")}
    kind_text = next((ast.unparse(k.value) for k in call.keywords if k.arg == "type"), "str")
    action = given.get("action")
    kind = {"store_true": "ON", "store_false": "OFF"}.get(action) or KIND.get(kind_text, "TEXT")
    default = given.get("default", action == "store_false" if action else None)
    dest = given.get("dest") or names[0].lstrip("-").replace("-", "_")
    choices = [text_of(c) for c in given.get("choices") or [] if c is not None]
    for name in names:
        print_row("ARG", [quoted(name.lstrip("-")), kind, "MANY" if "nargs" in given else "ONE",
                          quoted(text_of(default)), quoted(dest), quoted(" ".join(choices))])


def print_arguments(tree):
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)
             and isinstance(n.func, ast.Attribute) and n.func.attr == "add_argument"]
    for call in sorted(calls, key=lambda n: n.lineno):
        argument_row(call)


def words_of(annotation):
    """The names and the choices of a type: int | None, Literal["a", "b"], list[str]."""
    names = [n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)]
    choices = []
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            choices += [text_of(literal(c)) for c in getattr(node.slice, "elts", [node.slice])]
    return names, choices


def default_of(value):
    """The default of a member; field(default_factory=list) is an empty list."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return literal(value)
    factory = next((k.value for k in value.keywords if k.arg == "default_factory"), None)
    return literal(factory.body) if isinstance(factory, ast.Lambda) else None


def print_members(classes, name, prefix):
    for member in classes[name].body:
        if not isinstance(member, ast.AnnAssign):
            continue
        key, (names, choices) = prefix + member.target.id, words_of(member.annotation)
        if names[0] in classes:
            print_members(classes, names[0], key + ".")
            continue
        kind = next((KIND[n] for n in ("float", "bool", "int") if n in names), "TEXT")
        print_row("ARG", [quoted(key), kind, "MANY" if "list" in names else "ONE",
                          quoted(text_of(default_of(member.value))), quoted(key),
                          quoted(" ".join(choices))])


# ------------------------------------------------------------------------------------- DeepSpeed

# Sections whose members are the fields of a pydantic class.
SECTIONS = {"zero_optimization": "DeepSpeedZeroConfig", "bf16": "DeepSpeedBF16Config",
            "fp16": "DeepSpeedFP16Config", "tensor_parallel": "TPTrainingConfig",
            "compile": "CompileConfig"}

# Sections whose members are a dictionary of defaults.
DICTIONARIES = {"activation_checkpointing": "ACT_CHKPT_DEFAULT", "pipeline": "default_pipeline"}

# Sections that config.py passes on to other files as a whole.
OPEN = ["optimizer.params", "scheduler.params", "amp", "aio", "autotuning", "checkpoint",
        "comms_logger", "compression_training", "csv_monitor", "comet", "curriculum_learning",
        "data_efficiency", "datastates_ckpt", "eigenvalue", "elasticity", "flops_profiler",
        "hybrid_engine", "nebula", "progressive_layer_drop", "quantize_training",
        "sparse_attention", "tensorboard", "timers", "wandb", "weight_quantization",
        "zero_optimization.zenflow", "zero_optimization.zeropp_loco_param"]


def constant_of(node, constants):
    """The value of a constant; of pp_int(5) and of pydantic's Field(5, ge=0), the argument 5."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Call) and node.args:
        value = constant_of(node.args[0], constants)
        return int(value) if getattr(node.func, "id", "") == "pp_int" and value else value
    return sys.maxsize if ast.unparse(node) == "sys.maxsize" else literal(node)


def constants_of(tree):
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = constant_of(node.value, found)
    return found


def kind_of(value):
    for kind, word in ((bool, "BOOL"), (int, "INT"), (float, "REAL")):
        if isinstance(value, kind):
            return word
    return "TEXT"


def print_key(key, kind, default, many=False, dest=None, choices=()):
    print_row("ARG", [quoted(key), kind, "MANY" if many else "ONE", quoted(text_of(default)),
                      quoted(dest or key), quoted(" ".join(choices))])


def print_fields(classes, name, prefix, constants):
    """The fields of a pydantic class; those with an alias have two names."""
    for member in classes[name].body:
        if not isinstance(member, ast.AnnAssign):
            continue
        names, choices = words_of(member.annotation)
        alias = next((k.value.value for k in getattr(member.value, "keywords", [])
                      if k.arg == "alias"), None)
        inner = next((n for n in names if n in classes), None)
        bases = [b.id for b in classes[inner].bases] if inner else []
        if inner and "Enum" not in bases:
            print_fields(classes, inner, prefix + (alias or member.target.id) + ".", constants)
            continue
        if inner:
            values = [literal(a.value) for a in classes[inner].body if isinstance(a, ast.Assign)]
            names, choices = bases, sorted({text_of(v) for v in values})
        kind = next((KIND[n] for n in ("float", "bool", "int") if n in names), "TEXT")
        default = constant_of(member.value, constants)
        if isinstance(member.value, ast.Call) and not member.value.args:
            default = default_of(member.value)
        for key in [alias, member.target.id] if alias else [member.target.id]:
            print_key(prefix + key, kind, default, "List" in names, prefix + (alias or key),
                      choices)


# Types of keys whose default is None (comments of constants.py).
TYPES = {"train_batch_size": "INT", "train_micro_batch_size_per_gpu": "INT",
         "gradient_accumulation_steps": "INT", "steps_per_print": "INT", "vocabulary_size": "INT"}


def print_scalars(tree, constants):
    """get_scalar_param (param_dict, KEY, DEFAULT): the keys outside of sections."""
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "get_scalar_param"
                and len(call.args) == 3 and getattr(call.args[0], "id", "") == "param_dict"):
            continue
        key, default = (constant_of(a, constants) for a in call.args[1:])
        if key and key not in ("allgather_size", "comm_type"):
            print_key(key, TYPES.get(key, kind_of(default)), default)


def print_deepspeed(tree):
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    constants = constants_of(tree)
    print_scalars(tree, constants)
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        print_key(key, "TEXT", None, choices=("fp16", "bf16", "fp32"))
    print_key("vocabulary_size", "INT", None)
    print_key("sequence_parallel_size", "INT", 1)
    print_key("data_types.grad_accum_dtype", "TEXT", None, choices=("fp16", "bf16", "fp32"))
    print_key("optimizer.type", "TEXT", None)
    print_key("optimizer.legacy_fusion", "BOOL", False)
    print_key("scheduler.type", "TEXT", None)
    print_key("torch_autocast.enabled", "BOOL", False)
    print_key("torch_autocast.dtype", "TEXT", None)
    print_key("torch_autocast.lower_precision_safe_modules", "TEXT", None, True)
    for section, name in DICTIONARIES.items():
        dictionary = next(n.value for n in ast.walk(tree) if isinstance(n, ast.Assign)
                          and getattr(n.targets[0], "id", "") == name)
        for key, value in zip(dictionary.keys, dictionary.values):
            default = constant_of(value, constants)
            kind = "INT" if default is None else kind_of(default)
            print_key(section + "." + constant_of(key, constants), kind, default)
    for section, name in SECTIONS.items():
        print_fields(classes, name, section + ".", constants)
    for section in OPEN:
        print_key(section + ".*", "TEXT", None)


# -------------------------------------------------------------------------------- NeMo Automodel

# Classes of PyTorch that the recipe builds, with the types and defaults of their members.
POLICIES = {"mp_policy": (("_target_", "TEXT", None), ("param_dtype", "TEXT", None),
                          ("reduce_dtype", "TEXT", None), ("output_dtype", "TEXT", None),
                          ("cast_forward_inputs", "BOOL", True)),
            "offload_policy": (("_target_", "TEXT", None), ("pin_memory", "BOOL", True))}

# Keys of sections of a recipe whose classes are in other files.
RECIPE = ["recipe", "seed", "nvtx", "model._target_", "model.torch_dtype",
          "model.attn_implementation", "model.backend.dispatcher", "optimizer._target_",
          "optimizer.master_weights", "dataset.seq_len", "clip_grad_norm.max_norm",
          "packed_sequence.packed_sequence_size"]
RECIPE_TYPES = {"seed": ("INT", 42), "nvtx": ("BOOL", False), "dataset.seq_len": ("INT", None),
                "clip_grad_norm.max_norm": ("REAL", 1.0), "optimizer.master_weights": ("BOOL", False),
                "packed_sequence.packed_sequence_size": ("INT", 0)}
RECIPE_OPEN = ["model", "model.backend", "optimizer", "dataset", "packed_sequence", "dist_env",
               "rng", "checkpoint", "loss_fn", "dataloader", "validation_dataset",
               "validation_dataloader", "lr_scheduler", "wandb", "mlflow", "tokenizer", "ci",
               "benchmark", "logger", "slurm", "moe_metrics", "peft", "fp8", "quantization",
               "qat", "compile", "neftune", "distributed.moe.mp_policy"]


def print_automodel(tree):
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    printed = set()

    def field(prefix, member, name=None):
        if not isinstance(member, ast.AnnAssign) or member.target.id in printed:
            return
        names, choices = words_of(member.annotation)
        kind = next((KIND[n] for n in ("float", "bool", "int") if n in names), "TEXT")
        printed.add(member.target.id)
        print_key(prefix + member.target.id, kind, default_of(member.value), "List" in names,
                  member.target.id if prefix == "distributed." else None, choices)

    print_key("distributed.strategy", "TEXT", "fsdp2",
              choices=("fsdp2", "megatron_fsdp", "ddp"))
    for key, default in literal(next(
            n.value for n in tree.body if isinstance(n, (ast.Assign, ast.AnnAssign))
            and getattr(getattr(n, "target", None), "id", "") == "_PARALLELISM_DEFAULTS")).items():
        print_key("distributed." + key, "INT", default, dest=key)
    for name in ("FSDP2Config", "MegatronFSDPConfig", "DDPConfig"):
        for member in classes[name].body:
            field("distributed.", member)
    for policy, members in POLICIES.items():
        for key, kind, default in members:
            print_key(f"distributed.{policy}.{key}", kind, default, dest=f"{policy}.{key}")
    for section, name in (("pipeline", "PipelineConfig"), ("moe", "MoEParallelizerConfig")):
        printed.clear()
        for member in classes[name].body:
            field(f"distributed.{section}.", member)
    init = next(f for f in classes["StepScheduler"].body
                if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    defaults = [None] * (len(init.args.args) - len(init.args.defaults)) + init.args.defaults
    for arg, default in list(zip(init.args.args, defaults))[1:]:
        if arg.arg not in ("dp_size", "dataloader"):
            print_key("step_scheduler." + arg.arg, "INT", default and literal(default),
                      dest="step_scheduler." + arg.arg)
    for key in RECIPE:
        kind, default = RECIPE_TYPES.get(key, ("TEXT", None))
        print_key(key, kind, default)
    for section in RECIPE_OPEN:
        print_key(section + ".*", "TEXT", None)


# ------------------------------------------------------------------------------------ accelerate

# Sections of a configuration, and the first letters of their arguments of `accelerate launch`.
LAUNCH = {"fsdp_config": ("fsdp_",), "megatron_lm_config": ("megatron_lm_",),
          "parallelism_config": ("parallelism_config_",),
          "deepspeed_config": ("deepspeed_", "zero_stage", "zero3_", "offload_", "gradient_"),
          "dynamo_config": ("dynamo_",), "fp8_config": ("fp8_",)}

# A key without an argument of `accelerate launch`: the launcher passes its value on unchanged.
LAUNCH_EXTRA = (("fsdp_config.fsdp_ignored_modules", "TEXT", None),)


def print_accelerate(tree):
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    for name in ("BaseConfig", "ClusterConfig"):
        for member in classes[name].body:
            if isinstance(member, ast.AnnAssign) and member.target.id not in (*LAUNCH, "ipex_config",
                                                                              "mpirun_config"):
                names, choices = words_of(member.annotation)
                kind = next((KIND[n] for n in ("bool", "int") if n in names), "TEXT")
                default = literal(member.value) if member.value else None
                kind = "TEXT" if member.target.id == "downcast_bf16" else kind
                print_key(member.target.id, kind, default, "list" in names, None, choices)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)
             and getattr(n.func, "attr", "") == "add_argument"]
    for call in sorted(calls, key=lambda n: n.lineno):
        name = next((a for a in map(literal, call.args) if str(a).startswith("--")), "--")[2:]
        section = next((s for s, begins in LAUNCH.items() if name.startswith(begins)), None)
        given = {k.arg: k.value for k in call.keywords}
        if not section:
            continue
        default = literal(given["default"]) if "default" in given else None
        kind = KIND.get(ast.unparse(given["type"]) if "type" in given else "str", "TEXT")
        if default in ("true", "false") or kind == "BOOL" or "action" in given:
            kind, default = "BOOL", default or False
        print_key(section + "." + name, kind, int(default) if kind == "INT" and default else default)
    for key, kind, default in LAUNCH_EXTRA:
        print_key(key, kind, default)
    for section in ("ipex_config", "mpirun_config"):
        print_key(section + ".*", "TEXT", None)


# ----------------------------------------------------------------------------------- Megatron-Core

# Configuration objects, and the classes whose fields each of them has.
OBJECTS = {"TransformerConfig": ("ModelParallelConfig", "TransformerConfig"),
           "DistributedDataParallelConfig": ("DistributedDataParallelConfig",),
           "OptimizerConfig": ("OptimizerConfig",)}

# Arguments of GPTModel that are no settings, but objects such as a layer specification.
PARTS = ("self", "config", "transformer_layer_spec", "mtp_block_spec", "vp_stage", "pre_process",
         "post_process")


def core_key(name, annotation, default):
    names, choices = words_of(annotation)
    kind = next((KIND[n] for n in ("float", "bool", "int") if n in names), "TEXT")
    kind = kind if "Union" not in names else "TEXT"
    value = default_of(default) if default is not None else None
    if default is not None and value is None and ast.unparse(default) in (
            "AttnBackend.auto", "2 ** 32", "torch.float32"):
        value = literal(default) or ast.unparse(default)
    print_key(name, kind, value, "List" in names or "list" in names, name.split(".")[1], choices)


def print_core(tree):
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    for name, parts in OBJECTS.items():
        for member in (m for part in parts for m in classes[part].body):
            if isinstance(member, ast.AnnAssign):
                core_key(name + "." + member.target.id, member.annotation, member.value)
    init = next(m for m in classes["GPTModel"].body if getattr(m, "name", "") == "__init__")
    args = init.args.args
    for arg, default in zip(args, [None] * (len(args) - len(init.args.defaults))
                            + init.args.defaults):
        if arg.arg not in PARTS:
            core_key("GPTModel." + arg.arg, arg.annotation, default)


if __name__ == "__main__":
    source = ast.parse(sys.stdin.read())
    if sys.argv[1] == "argparse":
        print_arguments(source)
    elif sys.argv[1] == "deepspeed":
        print_deepspeed(source)
    elif sys.argv[1] == "automodel":
        print_automodel(source)
    elif sys.argv[1] == "accelerate":
        print_accelerate(source)
    elif sys.argv[1] == "core":
        print_core(source)
    else:
        print_members({n.name: n for n in source.body if isinstance(n, ast.ClassDef)},
                      sys.argv[1], "")
