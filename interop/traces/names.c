#include "interop/traces/names.h"
#include <string.h>

static const struct {
  const char *pattern;
  enum weft_work work;
} kernels[] = {
#define KERNEL(pattern, work, source) { pattern, work },
#include "interop/traces/names.def"
};

static const struct {
  const char *name;
  enum weft_work work;
} collectives[] = {
#define COLLECTIVE(name, work) { name, work },
#include "interop/traces/names.def"
};

/* Whether `pattern` matches somewhere in a text: its parts between `*` occur in this order. */
static gboolean
matches (const char *pattern, const char *text)
{
  while (*pattern) {
    gsize n = strcspn (pattern, "*");
    const char *at = text;
    while (*at && strncmp (at, pattern, n) != 0)
      at++;
    if (n && !*at)
      return FALSE;
    text = at + n;
    pattern += n + (pattern[n] == '*');
  }
  return TRUE;
}

enum weft_work
weft_names_work (const char *name)
{
  g_autofree char *lower = g_ascii_strdown (name, -1);

  for (unsigned i = 0; i < G_N_ELEMENTS (kernels); i++)
    if (matches (kernels[i].pattern, lower))
      return kernels[i].work;
  return WEFT_WORK_OTHER;
}

enum weft_work
weft_names_collective (const char *name)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (collectives); i++)
    if (strcmp (collectives[i].name, name) == 0)
      return collectives[i].work;
  return WEFT_WORK_COMMUNICATION;
}

/* Copies between GPU and host are transfers; others are work inside GPU memory. */
static void
classify_copy (struct weft_trace_kernel *k)
{
  k->work = WEFT_WORK_COPY;
  if (k->kind != WEFT_TRACE_MEMCPY)
    return;
  if (strstr (k->name, "HtoD"))
    k->axis = WEFT_LANE_H2D;
  else if (strstr (k->name, "DtoH"))
    k->axis = WEFT_LANE_D2H;
  else
    return;
  k->work = WEFT_WORK_HOST_COPY;
}

/* The class of a kernel by its name, which is looked up once per name. */
static enum weft_work
work_of_name (GHashTable *known, const char *name)
{
  void *work;

  if (g_hash_table_lookup_extended (known, name, NULL, &work))
    return (enum weft_work) GPOINTER_TO_INT (work);
  enum weft_work found = weft_names_work (name);
  g_hash_table_insert (known, (void *) name, GINT_TO_POINTER (found));
  return found;
}

static void
classify (const weft_trace *trace, struct weft_trace_kernel *k, GHashTable *known)
{
  if (k->kind != WEFT_TRACE_KERNEL) {
    classify_copy (k);
    return;
  }
  const char *collective =
      k->comm == WEFT_TRACE_NO_COMM
          ? NULL
          : g_array_index (trace->comm, struct weft_trace_comm, k->comm).collective;
  k->work = work_of_name (known, k->name);
  /* names of NCCL's kernels do not tell an all-to-all from sends and receives */
  if (weft_work_moves (k->work) && collective) {
    enum weft_work recorded = weft_names_collective (collective);
    k->work = recorded == WEFT_WORK_COMMUNICATION ? k->work : recorded;
  }
  k->axis = weft_work_moves (k->work) ? WEFT_AXIS_UNKNOWN : WEFT_LANE_GPU;
}

void
weft_names_classify (weft_trace *trace)
{
  g_autoptr (GHashTable) known = g_hash_table_new (g_direct_hash, g_direct_equal);

  for (guint i = 0; i < trace->rank->len; i++) {
    const struct weft_trace_rank *rank = g_ptr_array_index (trace->rank, i);
    for (guint j = 0; j < rank->kernel->len && !rank->own; j++)
      classify (trace, &g_array_index (rank->kernel, struct weft_trace_kernel, j), known);
  }
}
