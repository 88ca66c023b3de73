/* script.h - appends calls to scripts. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends a call of a unit to the script of its rank.  The caller sets the remaining fields.  The
 * pointer is valid until the next call is appended. */
struct gpu_call *gpu_script_call (struct gpu_rank_unit at, uint32_t op, enum gpu_call_kind kind);
