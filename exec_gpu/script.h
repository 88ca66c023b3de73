/* script.h - appends calls to call lists. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends a call of a launch to the call list of its rank. The caller sets the remaining fields.
 * The returned pointer is valid until the next call is appended. */
struct gpu_call *gpu_script_call (struct gpu_rank_unit at, uint32_t op, enum gpu_call_kind kind);
