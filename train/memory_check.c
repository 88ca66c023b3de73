#include "train/memory_check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include <unistd.h>

static gboolean
refuse_bytes (double bytes, const char *who, double has, const char *where, GError **error)
{
  g_autofree char *needed = weft_units_human (bytes, "B"), *there = weft_units_human (has, "B");

  g_set_error (error, WEFT_ERROR, WEFT_ERROR_NO, "%s %s, wanted at most %s, %s; see weft memory",
               who, needed, there, where);
  return FALSE;
}

gboolean
weft_memory_check_topology (const weft_plan *plan, GError **error)
{
  const struct weft_cluster *cluster = &plan->job.cluster;

  if (!weft_plan_host_fits (plan))
    return refuse_bytes ((double) weft_plan_host_bytes (plan), "ranks need together on the host",
                         cluster->f.node_host_memory, "what a node has (host_memory)", error);
  if (!weft_plan_fits (plan)) {
    g_autofree char *topology =
        g_strdup_printf ("what a rank of topology %s has (--gpu-memory says otherwise)",
                         g_quark_to_string (cluster->topology));
    return refuse_bytes ((double) weft_plan_worst_bytes (plan), "the largest rank needs",
                         cluster->f.gpu_memory, topology, error);
  }
  return TRUE;
}

gboolean
weft_memory_check_machine (const weft_plan *plan, GError **error)
{
  double ranks = plan->mesh.n_ranks / plan->n_roles, sum = 0;
  double machine = (double) sysconf (_SC_PHYS_PAGES) * (double) sysconf (_SC_PAGESIZE);

  if (!weft_memory_check_topology (plan, error))
    return FALSE;
  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (int pool = 0; pool < WEFT_N_POOL; pool++)
      sum += ranks * (double) plan->memory[role].planned[pool];
  return sum <= machine ||
         refuse_bytes (sum, "all ranks need", machine, "what this machine has", error);
}
