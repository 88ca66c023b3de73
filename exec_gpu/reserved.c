/* Memory of this process's first GPU that is not part of the plan (CUDA context, NCCL, libraries).
 * The free memory is measured after each of these users has started; each decrease is assigned to
 * one user. */
#include "exec_gpu/reserved.h"
#include <string.h>

/* Bytes of kernel scratch on the first GPU. Scratch is allocated together with the memory pools, so
 * the number is computed and not measured. */
static uint64_t
scratch_bytes (const struct gpu_machine *m)
{
  uint64_t bytes = 0;

  for (uint32_t row = m->first; row < m->first + m->n_here; row++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
      if (m->rank[row].device == m->rank[m->first].device)
        bytes += m->rank[row].scratch[lane].bytes;
  return bytes;
}

gboolean
gpu_reserved_measure (struct gpu_machine *m, enum weft_reserved who, GError **error)
{
  uint64_t left, all;

  if (!m->calls->room)
    return TRUE;
  if (!gpu_choose (&m->rank[m->first], error) ||
      !gpu_ok (m, GPU_CALL (m, room, &left, &all), error, "memory of the first GPU"))
    return FALSE;
  uint64_t before = who == WEFT_RESERVED_CONTEXT ? all : m->left;
  if (who == WEFT_RESERVED_SCRATCH)
    m->reserved[who] = scratch_bytes (m);
  else
    m->reserved[who] = before > left ? before - left : 0;
  m->left = left;
  return TRUE;
}

void
gpu_reserved_report (const struct gpu_machine *m, weft_timeline *t)
{
  t->knows_reserved = m->calls->room != NULL;
  memcpy (t->reserved, m->reserved, sizeof t->reserved);
}
