#include "train/memory_check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include <unistd.h>

static gboolean
refuse_bytes (double bytes, const char *who, double has, const char *where, GError **error)
{
  g_autofree char *needed = weft_units_human (bytes, "B"), *there = weft_units_human (has, "B");

  g_set_error (error, WEFT_ERROR, WEFT_ERROR_NO,
               "%s: found a need of %s, wanted at most %s, %s; see weft memory", who, needed, there,
               where);
  return FALSE;
}

static gboolean
check_topology (const weft_plan *plan, GError **error)
{
  const struct weft_cluster *cluster = &plan->job.cluster;

  if (!weft_plan_host_fits (plan))
    return refuse_bytes ((double) weft_plan_host_bytes (plan), "host memory of all ranks",
                         cluster->f.node_host_memory, "the memory of a node (host_memory)", error);
  if (!weft_plan_fits (plan)) {
    g_autofree char *topology =
        g_strdup_printf ("the memory of a GPU of topology %s (--gpu-memory overrides it)",
                         g_quark_to_string (cluster->topology));
    return refuse_bytes ((double) weft_plan_worst_bytes (plan), "device memory of the largest rank",
                         weft_plan_capacity (&plan->job), topology, error);
  }
  return TRUE;
}

double
weft_memory_total (const weft_plan *plan)
{
  double ranks = plan->mesh.n_ranks / plan->n_roles, sum = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (int pool = 0; pool < WEFT_N_POOL; pool++)
      sum += ranks * (double) plan->memory[role].planned[pool];
  return sum;
}

static gboolean
check_machine (const weft_plan *plan, GError **error)
{
  double machine = (double) sysconf (_SC_PHYS_PAGES) * (double) sysconf (_SC_PAGESIZE);
  double sum = weft_memory_total (plan);

  return sum <= machine ||
         refuse_bytes (sum, "memory of all ranks", machine, "the memory of this machine", error);
}

gboolean
weft_memory_check (const weft_plan *plan, const struct weft_exec_ops *ops, GError **error)
{
  return check_topology (plan, error) &&
         (!(ops->flags & WEFT_EXEC_HOST) || check_machine (plan, error));
}
