#include "exec_gpu/script.h"

struct gpu_call *
gpu_script_call (struct gpu_rank_unit at, uint32_t op, enum gpu_call_kind kind)
{
  struct gpu_script *s = gpu_script_of (at.r->m, at.r);
  struct gpu_call call = {
    .kind = kind, .lane = at.u->lane, .row = at.r->row, .op = op, .stream = at.r->stream[at.u->lane]
  };

  g_array_append_val (s->call, call);
  return &g_array_index (s->call, struct gpu_call, s->call->len - 1);
}
