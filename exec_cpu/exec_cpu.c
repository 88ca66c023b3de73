#include "exec_cpu/exec_cpu.h"

const struct weft_exec_ops weft_exec_cpu = { .name = "cpu" };
