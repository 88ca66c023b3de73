#include "exec_gpu/comm.h"

gboolean
gpu_comm_is_pair (const struct gpu_machine *m, const struct weft_op *row)
{
  return m->apart && weft_op_info[row->kind].class == WEFT_CLASS_P2P && row->group == WEFT_GROUP_PP;
}

weft_gpu_comm *
gpu_comm_of (const struct gpu_rank *r, const struct weft_op *row)
{
  gboolean before = row->peer < 0, back = (row->kind == WEFT_OP_SEND) == before;

  return gpu_comm_is_pair (r->m, row) ? r->pair[before][back] : r->comm[row->group];
}

/* In the communicator of two neighbouring stages, the earlier stage is member 0. */
uint32_t
gpu_comm_peer (const struct gpu_rank *r, const struct weft_op *row)
{
  const struct weft_mesh *mesh = &r->m->base.plan->mesh;
  struct weft_group group = weft_mesh_group (mesh, r->rank, row->group);

  if (gpu_comm_is_pair (r->m, row))
    return row->peer > 0;
  return weft_group_index (&group, weft_mesh_beside (mesh, r->rank, row->peer < 0 ? -1 : 1));
}

gboolean
gpu_comm_check_all (struct gpu_machine *m, GError **error)
{
  gboolean ready;

  for (uint32_t i = 0; i < m->comm->len; i++)
    if (!gpu_ok (m, GPU_CALL (m, comm_ready, g_ptr_array_index (m->comm, i), &ready), error,
                 "a communicator"))
      return FALSE;
  return TRUE;
}
