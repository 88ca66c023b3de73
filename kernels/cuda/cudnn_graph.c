/* A graph is a list of tensor and operation descriptors; the library decides how to split it into
 * kernels. The descriptors live as long as the plan. */
#include "kernels/cuda/cudnn.h"
#include <stdbool.h>
#include <string.h>

enum { ALIGNMENT = 16, SCRATCH_ALIGNMENT = 256, MOST_CONFIGS = 8 };

/* ---------------------------------------------------------------------------- descriptors */

static void
fail (weft_cudnn_graph *g, const char *what, int status)
{
  char last[384] = "";

  if (*g->error)
    return;
  g->calls->GetLastErrorString (last, sizeof last);
  g_snprintf (g->error, sizeof g->error, "%s: %s%s%s", what, g->calls->GetErrorString (status),
              *last ? ": " : "", last);
}

static weft_cudnn_thing
make (weft_cudnn_graph *g, int type)
{
  weft_cudnn_thing thing = NULL;

  if (*g->error)
    return NULL;
  g_assert (g->n_things < WEFT_CUDNN_MOST_THINGS);
  int status = g->calls->BackendCreateDescriptor (type, &thing);
  if (status)
    fail (g, "creating a descriptor", status);
  else
    g->thing[g->n_things++] = thing;
  return thing;
}

static void
set (weft_cudnn_graph *g, weft_cudnn_thing thing, int name, int type, int64_t n, const void *value)
{
  char what[48];

  if (*g->error)
    return;
  int status = g->calls->BackendSetAttribute (thing, name, type, n, value);
  g_snprintf (what, sizeof what, "setting attribute %d", name);
  if (status)
    fail (g, what, status);
}

static void
set_thing (weft_cudnn_graph *g, weft_cudnn_thing to, int name, weft_cudnn_thing value)
{
  if (value)
    set (g, to, name, WEFT_CUDNN_TYPE_THING, 1, &value);
}

static void
set_type (weft_cudnn_graph *g, weft_cudnn_thing to, int name, int data_type)
{
  set (g, to, name, WEFT_CUDNN_TYPE_DATA_TYPE, 1, &data_type);
}

static void
finalize (weft_cudnn_graph *g, weft_cudnn_thing thing, const char *what)
{
  int status = *g->error ? 0 : g->calls->BackendFinalize (thing);

  if (status)
    fail (g, what, status);
}

void
weft_cudnn_graph_clear (weft_cudnn_graph *g)
{
  while (g->n_things > 0)
    (void) g->calls->BackendDestroyDescriptor (g->thing[--g->n_things]);
  memset (g, 0, sizeof *g);
}

/* -------------------------------------------------------------------------------- tensors */

enum lies { IN_MEMORY, BETWEEN, BY_VALUE };

static weft_cudnn_thing
tensor (weft_cudnn_graph *g, int type, const struct weft_cudnn_view *view, enum lies lies)
{
  const int64_t alignment = ALIGNMENT, id = ++g->id;
  const bool is = true;
  weft_cudnn_thing t = make (g, WEFT_CUDNN_TENSOR);

  set_type (g, t, WEFT_CUDNN_TENSOR_TYPE, type);
  set (g, t, WEFT_CUDNN_TENSOR_DIMS, WEFT_CUDNN_TYPE_INT64, 4, view->dim);
  set (g, t, WEFT_CUDNN_TENSOR_STRIDES, WEFT_CUDNN_TYPE_INT64, 4, view->stride);
  set (g, t, WEFT_CUDNN_TENSOR_ALIGNMENT, WEFT_CUDNN_TYPE_INT64, 1, &alignment);
  set (g, t, WEFT_CUDNN_TENSOR_ID, WEFT_CUDNN_TYPE_INT64, 1, &id);
  if (lies == BETWEEN)
    set (g, t, WEFT_CUDNN_TENSOR_VIRTUAL, WEFT_CUDNN_TYPE_BOOLEAN, 1, &is);
  if (lies == BY_VALUE)
    set (g, t, WEFT_CUDNN_TENSOR_BY_VALUE, WEFT_CUDNN_TYPE_BOOLEAN, 1, &is);
  finalize (g, t, "describing a tensor");
  return t;
}

static struct weft_cudnn_bound *
bind (weft_cudnn_graph *g)
{
  struct weft_cudnn_bound *b = &g->bound[g->n_bound++];

  g_assert (g->n_bound <= WEFT_CUDNN_MOST_BOUND);
  *b = (struct weft_cudnn_bound){ .id = g->id, .slot = -1 };
  return b;
}

weft_cudnn_thing
weft_cudnn_tensor (weft_cudnn_graph *g, int type, const struct weft_cudnn_view *view, int slot,
                   uint64_t offset)
{
  weft_cudnn_thing t = tensor (g, type, view, IN_MEMORY);
  struct weft_cudnn_bound *b = bind (g);

  b->slot = slot;
  b->offset = offset * (type == WEFT_CUDNN_FLOAT ? sizeof (float) : sizeof (uint16_t));
  return t;
}

weft_cudnn_thing
weft_cudnn_between (weft_cudnn_graph *g, int type, const struct weft_cudnn_view *view)
{
  return tensor (g, type, view, BETWEEN);
}

weft_cudnn_thing
weft_cudnn_kept (weft_cudnn_graph *g, const struct weft_cudnn_view *view)
{
  weft_cudnn_thing t = tensor (g, WEFT_CUDNN_FLOAT, view, IN_MEMORY);
  uint64_t bytes = sizeof (float);

  for (int d = 0; d < 4; d++)
    bytes *= (uint64_t) view->dim[d];
  bind (g)->offset = g->own;
  g->own += (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
  return t;
}

weft_cudnn_thing
weft_cudnn_number (weft_cudnn_graph *g, float number)
{
  const struct weft_cudnn_view one = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } };
  weft_cudnn_thing t = tensor (g, WEFT_CUDNN_FLOAT, &one, BY_VALUE);
  struct weft_cudnn_bound *b = bind (g);

  b->number = number;
  b->is_number = TRUE;
  return t;
}

/* ----------------------------------------------------------------------------- operations */

static void
keep_op (weft_cudnn_graph *g, weft_cudnn_thing op, const char *what)
{
  finalize (g, op, what);
  g_assert (g->n_ops < WEFT_CUDNN_MOST_OPS);
  g->op[g->n_ops++] = op;
}

void
weft_cudnn_matmul (weft_cudnn_graph *g, weft_cudnn_thing a, weft_cudnn_thing b, weft_cudnn_thing c)
{
  weft_cudnn_thing how = make (g, WEFT_CUDNN_MATMUL), op = make (g, WEFT_CUDNN_MATMUL_OP);

  set_type (g, how, WEFT_CUDNN_MATMUL_PREC, WEFT_CUDNN_FLOAT);
  finalize (g, how, "describing a matrix product");
  set_thing (g, op, WEFT_CUDNN_MATMUL_A, a);
  set_thing (g, op, WEFT_CUDNN_MATMUL_B, b);
  set_thing (g, op, WEFT_CUDNN_MATMUL_C, c);
  set_thing (g, op, WEFT_CUDNN_MATMUL_DESC, how);
  keep_op (g, op, "adding a matrix product");
}

void
weft_cudnn_reduce (weft_cudnn_graph *g, int operator, weft_cudnn_thing x, weft_cudnn_thing y)
{
  weft_cudnn_thing how = make (g, WEFT_CUDNN_REDUCTION), op = make (g, WEFT_CUDNN_REDUCTION_OP);

  set (g, how, WEFT_CUDNN_REDUCTION_OPERATOR, WEFT_CUDNN_TYPE_REDUCTION, 1, &operator);
  set_type (g, how, WEFT_CUDNN_REDUCTION_PREC, WEFT_CUDNN_FLOAT);
  finalize (g, how, "describing a reduction");
  set_thing (g, op, WEFT_CUDNN_REDUCTION_X, x);
  set_thing (g, op, WEFT_CUDNN_REDUCTION_Y, y);
  set_thing (g, op, WEFT_CUDNN_REDUCTION_DESC, how);
  keep_op (g, op, "adding a reduction");
}

void
weft_cudnn_reshape (weft_cudnn_graph *g, weft_cudnn_thing x, weft_cudnn_thing y)
{
  weft_cudnn_thing op = make (g, WEFT_CUDNN_RESHAPE_OP);

  set_thing (g, op, WEFT_CUDNN_RESHAPE_X, x);
  set_thing (g, op, WEFT_CUDNN_RESHAPE_Y, y);
  keep_op (g, op, "adding a reshape");
}

void
weft_cudnn_pointwise (weft_cudnn_graph *g, const struct weft_cudnn_point *p)
{
  weft_cudnn_thing how = make (g, WEFT_CUDNN_POINTWISE), op = make (g, WEFT_CUDNN_POINTWISE_OP);

  set (g, how, WEFT_CUDNN_POINTWISE_MODE, WEFT_CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
  set_type (g, how, WEFT_CUDNN_POINTWISE_PREC, p->precision);
  if (p->mode == WEFT_CUDNN_GEN_INDEX)
    set (g, how, WEFT_CUDNN_POINTWISE_AXIS, WEFT_CUDNN_TYPE_INT64, 1, &p->axis);
  finalize (g, how, "describing a pointwise operation");
  set_thing (g, op, WEFT_CUDNN_POINTWISE_DESC, how);
  set_thing (g, op, WEFT_CUDNN_POINTWISE_X, p->x);
  set_thing (g, op, WEFT_CUDNN_POINTWISE_B, p->b);
  set_thing (g, op, WEFT_CUDNN_POINTWISE_T, p->t);
  set_thing (g, op, WEFT_CUDNN_POINTWISE_Y, p->y);
  keep_op (g, op, "adding a pointwise operation");
}

/* ---------------------------------------------------------------------------------- plans */

void
weft_cudnn_describe (weft_cudnn_graph *g, const char *json)
{
  g->device = make (g, WEFT_CUDNN_DEVICE);
  set (g, g->device, WEFT_CUDNN_DEVICE_JSON, WEFT_CUDNN_TYPE_CHAR, (int64_t) strlen (json), json);
  finalize (g, g->device, "describing the device");
}

static weft_cudnn_thing
graph_of (weft_cudnn_graph *g)
{
  weft_cudnn_thing graph = make (g, WEFT_CUDNN_GRAPH);

  if (g->handle)
    set (g, graph, WEFT_CUDNN_GRAPH_HANDLE, WEFT_CUDNN_TYPE_HANDLE, 1, &g->handle);
  set (g, graph, WEFT_CUDNN_GRAPH_OPS, WEFT_CUDNN_TYPE_THING, g->n_ops, g->op);
  finalize (g, graph, "building the attention graph");
  return graph;
}

/* Stores the execution plans that the library's heuristic suggests in `out`, best first. Returns
 * their number. */
static int64_t
configs_of (weft_cudnn_graph *g, weft_cudnn_thing graph, weft_cudnn_thing *out)
{
  const int mode = WEFT_CUDNN_HEUR_A;
  weft_cudnn_thing heuristic = make (g, WEFT_CUDNN_ENGINEHEUR);
  int64_t n = 0;

  set_thing (g, heuristic, WEFT_CUDNN_HEUR_GRAPH, graph);
  set (g, heuristic, WEFT_CUDNN_HEUR_MODE, WEFT_CUDNN_TYPE_HEUR_MODE, 1, &mode);
  set_thing (g, heuristic, WEFT_CUDNN_HEUR_DEVICE, g->device);
  finalize (g, heuristic, "running the heuristics");
  for (int i = 0; i < MOST_CONFIGS; i++)
    out[i] = make (g, WEFT_CUDNN_ENGINECFG);
  if (*g->error)
    return 0;
  int status = g->calls->BackendGetAttribute (heuristic, WEFT_CUDNN_HEUR_RESULTS,
                                              WEFT_CUDNN_TYPE_THING, MOST_CONFIGS, &n, out);
  if (status)
    fail (g, "reading the results of the heuristics", status);
  return status ? 0 : MIN (n, MOST_CONFIGS);
}

static gboolean
finish_plan (weft_cudnn_graph *g, weft_cudnn_thing config)
{
  int64_t n = 0, bytes = 0;

  g->plan = make (g, WEFT_CUDNN_PLAN);
  if (g->handle)
    set (g, g->plan, WEFT_CUDNN_PLAN_HANDLE, WEFT_CUDNN_TYPE_HANDLE, 1, &g->handle);
  set_thing (g, g->plan, WEFT_CUDNN_PLAN_DEVICE, g->device);
  set_thing (g, g->plan, WEFT_CUDNN_PLAN_CONFIG, config);
  finalize (g, g->plan, "building a plan");
  int status = *g->error ? 0
                         : g->calls->BackendGetAttribute (g->plan, WEFT_CUDNN_PLAN_WORKSPACE,
                                                          WEFT_CUDNN_TYPE_INT64, 1, &n, &bytes);
  if (status)
    fail (g, "reading the workspace size of a plan", status);
  g->workspace = (uint64_t) bytes;
  return !*g->error;
}

gboolean
weft_cudnn_finish (weft_cudnn_graph *g)
{
  weft_cudnn_thing graph = graph_of (g), config[MOST_CONFIGS];
  int64_t n = configs_of (g, graph, config);
  char first[sizeof g->error] = "";

  for (int64_t i = 0; i < n; i++) {
    if (finish_plan (g, config[i]))
      return TRUE;
    if (!*first)
      g_strlcpy (first, g->error, sizeof first);
    *g->error = 0;
  }
  if (!*g->error)
    g_strlcpy (g->error, *first ? first : "no engine for an attention graph of this shape",
               sizeof g->error);
  return FALSE;
}

/* Sets the pointers of one call: the address of the scratch is known only when the plan runs on a
 * stream. */
static void
fill_pack (weft_cudnn_graph *g, weft_cudnn_thing pack, void *const *pointer, void *scratch)
{
  int64_t id[WEFT_CUDNN_MOST_BOUND];
  void *at[WEFT_CUDNN_MOST_BOUND], *workspace = (uint8_t *) scratch + g->own;

  for (int i = 0; i < g->n_bound; i++) {
    struct weft_cudnn_bound *b = &g->bound[i];
    uint8_t *base = b->slot < 0 ? scratch : pointer[b->slot];
    id[i] = b->id;
    at[i] = b->is_number ? (void *) &b->number : base + b->offset;
  }
  set (g, pack, WEFT_CUDNN_PACK_IDS, WEFT_CUDNN_TYPE_INT64, g->n_bound, id);
  set (g, pack, WEFT_CUDNN_PACK_POINTERS, WEFT_CUDNN_TYPE_VOID_PTR, g->n_bound, at);
  set (g, pack, WEFT_CUDNN_PACK_WORKSPACE, WEFT_CUDNN_TYPE_VOID_PTR, 1, &workspace);
  finalize (g, pack, "binding the operands of attention");
}

const char *
weft_cudnn_run (weft_cudnn_graph *g, void *const *pointer, void *scratch, void *stream)
{
  weft_cudnn_thing pack = make (g, WEFT_CUDNN_PACK);
  int status = *g->error ? 0 : g->calls->SetStream (g->handle, stream);

  if (status)
    fail (g, "setting the stream", status);
  fill_pack (g, pack, pointer, scratch);
  if (!*g->error && (status = g->calls->BackendExecute (g->handle, g->plan, pack)))
    fail (g, "running attention", status);
  if (pack)
    (void) g->calls->BackendDestroyDescriptor (g->thing[--g->n_things]);
  return *g->error ? g_intern_string (g->error) : NULL;
}
