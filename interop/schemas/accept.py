#!/usr/bin/env python3
"""Gives exports of Weft to the configuration classes of the software itself.

    accept.py SOFTWARE SOURCE FILE...

SOFTWARE is a target of weft export, SOURCE a checkout of the release that interop/schemas/*.def
names, FILE an export. Neither PyTorch nor a GPU is needed: standins.py takes the place of modules
that are not installed. torchtitan also needs tyro; deepspeed needs the number of GPUs in WORLD_SIZE.
Ends with status 1 if a file is refused."""
import json
import operator
import os
import subprocess
import sys
import types

import standins

ABSENT = ("torch transformer_engine apex einops tensorstore zarr numpy nvidia_resiliency_ext "
          "multistorageclient tqdm transformers wandb requests flash_attn flash_attn_3 triton "
          "modelopt nvidia causal_conv1d mamba_ssm six datasets regex sentencepiece tiktoken "
          "psutil shtab rich typeguard torchao tokenizers safetensors tensorboard hjson py3nvml "
          "cpuinfo msgpack ninja peft huggingface_hub nvdlfw_inspect opt_einsum torchvision "
          "torchdata megatron_fsdp mlflow jinja2 timm diffusers")


def torch_values():
    """Values of PyTorch that configuration classes compute with, for a Hopper GPU."""
    import torch
    for name in "float32 float16 bfloat16 half float int64 uint8 float8_e4m3fn".split():
        setattr(torch, name, "torch." + name)
    torch.cuda.get_device_capability = lambda *which: (9, 0)
    torch.cuda.get_device_properties = lambda *which: types.SimpleNamespace(major=9, minor=0)
    torch.cuda.is_available = torch.distributed.is_initialized = lambda *which: False
    torch.jit.script = lambda function: function
    torch.compile = lambda function=None, **how: function or (lambda f: f)


# ------------------------------------------------------------- one function for each software

def megatron_arguments(script):
    """Runs an exported script with a torchrun that prints its arguments."""
    shown = ('torchrun () { for word; do printf "%s\\0" "$word"; done; }; export -f torchrun; '
             'bash "$0" --lr 1e-4 --train-iters 10')
    words = subprocess.run(["bash", "-c", shown, script], check=True, stdout=subprocess.PIPE,
                           text=True).stdout.split("\0")
    at = words.index("pretrain_gpt.py")
    gpus = [int(words[words.index(key) + 1]) for key in ("--nproc-per-node", "--nnodes")]
    os.environ.update(WORLD_SIZE=str(gpus[0] * gpus[1]), RANK="0")
    return [words[at]] + words[at + 1:-1]


def megatron_lm(path):
    from megatron.training import arguments
    sys.argv = megatron_arguments(path)
    quiet, sys.stdout = sys.stdout, open(os.devnull, "w")
    try:
        args = arguments.parse_args()
        arguments.validate_args(args, {})
        arguments.core_transformer_config_from_args(args)
    finally:
        sys.stdout = quiet


def torch_named(value):
    """The object of PyTorch that a text names, as a program that reads the export looks it up."""
    if not isinstance(value, str) or not value.startswith("torch."):
        return value
    return operator.attrgetter(value.removeprefix("torch."))(sys.modules["torch"])


def megatron_core(path):
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    import megatron.core.models.gpt.gpt_model as gpt
    import inspect
    known = {c.__name__: c for c in (TransformerConfig, OptimizerConfig,
                                     DistributedDataParallelConfig)}
    for name, members in json.load(open(path)).items():
        if name in known:
            known[name](**{key: torch_named(value) for key, value in members.items()})
        elif name == "GPTModel":
            wanted = inspect.signature(gpt.GPTModel.__init__).parameters
            missing = [key for key in members if key not in wanted]
            if missing:
                raise ValueError(f"GPTModel has no {', '.join(missing)}")
        else:
            raise ValueError(f"no class {name}")


def torchtitan(path):
    from torchtitan.config.manager import ConfigManager
    ConfigManager().parse_args(["--job.config_file", path])


def nemo_automodel(path):
    import yaml
    from nemo_automodel.recipes._dist_setup import parse_distributed_section
    parse_distributed_section(yaml.safe_load(open(path)).get("distributed", {}))


def deepspeed(path):
    from deepspeed.runtime.config import DeepSpeedConfig
    gpus = int(os.environ["WORLD_SIZE"])
    import deepspeed.runtime.config as module
    module.dist.get_world_size = lambda *group: gpus
    module.dist.get_rank = lambda *group: 0
    DeepSpeedConfig(json.load(open(path)))


def accelerate(path):
    import yaml
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    ClusterConfig.from_yaml_file(path)
    keys = {action.dest for action in launch_command_parser()._actions}
    for name, members in yaml.safe_load(open(path)).items():
        missing = [m for m in (members if isinstance(members, dict) else {})
                   if m not in keys and m not in {k.removeprefix("fsdp_") for k in keys}]
        if missing:
            raise ValueError(f"{name}: accelerate launch has no {', '.join(missing)}")


SOFTWARE = {"megatron-lm": megatron_lm, "megatron-core": megatron_core, "torchtitan": torchtitan,
            "nemo-automodel": nemo_automodel, "deepspeed": deepspeed, "accelerate": accelerate}


def main(software, source, *files):
    sys.path[:0] = [source, os.path.join(source, "src")]
    standins.install(ABSENT)
    standins.pydantic_standin()
    torch_values()
    refused = 0
    for path in files:
        try:
            SOFTWARE[software](path)
            print(f"{path}: accepted")
        except (Exception, SystemExit) as error:
            refused += 1
            print(f"{path}: refused: {type(error).__name__}: {error}")
    print(f"{software}: {len(files) - refused} of {len(files)} accepted")
    return 1 if refused else 0


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in SOFTWARE:
        sys.exit(f"{__doc__}\nSOFTWARE: {', '.join(SOFTWARE)}")
    sys.exit(main(*sys.argv[1:]))
