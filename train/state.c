#include "train/state_parts.h"
#include "core/program/cut.h"
#include "kernels/float.h"
#include "train/quantised.h"
#include "train/spread.h"
#include "train/processes.h"
#include <math.h>
#include <string.h>

/* Number of elements that are converted at a time: 256 KiB as floats. */
#define MOST_AT_ONCE 65536u

/* ------------------------------------------------------------------------ making */

static struct copy *
copy_at (const struct tensor *t, uint32_t copy)
{
  return &g_array_index (t->copies, struct copy, copy);
}

static void
find_stage (const weft_exec *x, uint32_t role, enum weft_group_kind replicas, uint32_t part,
            struct stage *stage)
{
  const struct weft_mesh *mesh = &x->plan->mesh;
  struct weft_group g = weft_mesh_group (mesh, role * weft_mesh_stage_size (mesh) + part, replicas);

  stage->p = x->plan->role[role];
  stage->part = part;
  stage->n_place = weft_group_size (&g);
  stage->row = g_new (uint32_t, stage->n_place);
  stage->slice = g_new (struct weft_slice *, stage->n_place);
  for (uint32_t place = 0; place < stage->n_place; place++) {
    uint32_t rank = weft_group_rank (&g, place);
    stage->row[place] = x->actors->actor_of[rank];
    stage->slice[place] = weft_slices (stage->p, mesh, rank, &stage->n_slice);
  }
}

static uint64_t
elements (const struct weft_param *param)
{
  return param->rows * param->columns;
}

/* Adds those parts of a parameter whose optimizer state is in the slices of group member
 * `place`. */
static void
add_pieces (struct copy *copy, uint32_t place)
{
  const struct stage *stage = copy->stage;

  for (uint32_t k = 0; k < stage->n_slice; k++) {
    const struct weft_slice *slice = &stage->slice[place][k];
    struct weft_segment segment;
    if (!weft_param_segment (copy->param, slice->first, slice->n, &segment))
      continue;
    struct piece piece = { stage->row[place], segment.start, segment.n, segment.offset, slice };
    g_array_append_val (copy->pieces, piece);
  }
}

static int
compare_pieces (gconstpointer a, gconstpointer b)
{
  const struct piece *x = a, *y = b;

  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return (x->row > y->row) - (x->row < y->row);
}

static void
add_copy (struct tensor *t, const struct stage *stage, const struct weft_param *param)
{
  struct copy copy = { stage, param, g_array_new (FALSE, FALSE, sizeof (struct piece)) };

  for (uint32_t place = 0; place < stage->n_place; place++)
    add_pieces (&copy, place);
  g_array_sort (copy.pieces, compare_pieces);
  g_array_append_val (t->copies, copy);
}

/* Number of parts into which tensor parallelism splits the tensors of a pipeline stage, except
 * those of experts. n_experts() returns the number of parts for tensors of experts. */
static uint32_t
n_dense (const weft_state *state)
{
  return state->x->plan->mesh.tp;
}

static uint32_t
n_experts (const weft_state *state)
{
  const struct weft_mesh *mesh = &state->x->plan->mesh;
  return weft_mesh_deals_experts (mesh) ? weft_mesh_group_size (mesh, WEFT_GROUP_TP_EP) : 0;
}

/* Adds the tensor-parallel (or expert-parallel) parts of a parameter to its tensor. `stage`
 * describes the ranks that have part 0. */
static void
add_copies (const weft_state *state, struct tensor *t, const struct stage *stage,
            const struct weft_param *param)
{
  gboolean expert = param->group == WEFT_GROUP_TP_EP;
  const struct stage *parts = expert ? stage + n_dense (state) : stage;
  uint32_t n = expert ? n_experts (state) : n_dense (state);

  for (uint32_t part = 0; part < n; part++)
    add_copy (t, parts + part, param);
}

static void
add_tensor (weft_state *state, const struct stage *stage, const struct weft_param *param)
{
  const char *name = stage->p->name[param->name];
  struct tensor t = { .info = { .name = param->layer == WEFT_NO_LAYER
                                            ? g_strdup (name)
                                            : g_strdup_printf ("layers.%u.%s", param->layer, name),
                                .param = name,
                                .layer = param->layer,
                                .rows = param->whole_rows,
                                .columns = param->whole_columns,
                                .decay = param->decay,
                                .dtype = param->scale == WEFT_NO_BUF ? state->dtype : WEFT_FP8,
                                .frozen = param->frozen } };

  t.copies = g_array_new (FALSE, FALSE, sizeof (struct copy));
  add_copies (state, &t, stage, param);
  g_array_append_val (state->tensors, t);
}

/* Adds the copies that a second pipeline stage has of a tensor: the head of a tied embedding, or
 * all tensors of a stage that exists twice (DualPipe). */
static void
add_duplicate (weft_state *state, const struct stage *stage, const struct weft_param *param)
{
  const char *name = stage->p->name[param->name];
  struct tensor *found = NULL;

  for (uint32_t i = 0; i < state->tensors->len; i++) {
    struct tensor *t = &g_array_index (state->tensors, struct tensor, i);
    gboolean same = t->info.layer == param->layer && strcmp (t->info.param, name) == 0;
    if (same || (!found && param->tied && copy_at (t, 0)->param->tied))
      found = t;
  }
  add_copies (state, found, stage, param);
}

/* Adds all parameters of a pipeline stage. `stage` describes the ranks that have tensor-parallel
 * part 0. */
static void
add_stage (weft_state *state, const struct stage *stage, gboolean duplicates)
{
  for (uint32_t i = 0; i < stage->p->n_param; i++)
    if (stage->p->param[i].duplicate == duplicates)
      (duplicates ? add_duplicate : add_tensor) (state, stage, &stage->p->param[i]);
}

/* Finds or adds a tensor that no optimizer updates: router bias of experts, amax of fp8 inputs. */
static struct tensor *
find_buffer_tensor (weft_state *state, const char *name, const struct weft_buf *buf)
{
  for (uint32_t i = 0; i < state->tensors->len; i++) {
    struct tensor *t = &g_array_index (state->tensors, struct tensor, i);
    if (t->buffers && t->info.layer == buf->layer && g_str_equal (t->info.param, name))
      return t;
  }
  struct tensor t = { .info = { .name = g_strdup_printf ("layers.%u.%s", buf->layer, name),
                                .param = name,
                                .layer = buf->layer,
                                .rows = buf->bytes / weft_dtype_bytes (WEFT_FP32),
                                .columns = 1,
                                .dtype = WEFT_FP32,
                                .fp8_recipe = !g_str_equal (name, WEFT_EXPERT_BIAS) },
                      .copies = g_array_new (FALSE, FALSE, sizeof (struct copy)),
                      .buffers = g_array_new (FALSE, FALSE, sizeof (struct buffer)) };
  g_array_append_val (state->tensors, t);
  return &g_array_index (state->tensors, struct tensor, state->tensors->len - 1);
}

static gboolean
is_buffer_name (const char *name)
{
  return g_str_equal (name, WEFT_EXPERT_BIAS) || g_str_has_suffix (name, WEFT_AMAX_SUFFIX);
}

static void
add_buffers (weft_state *state, uint32_t row)
{
  const weft_program *p = state->x->plan->role[state->x->actors->role[row]];

  for (uint32_t buf = 0; buf < p->n_buf; buf++)
    if (p->buf[buf].base != WEFT_NO_BUF && is_buffer_name (p->name[p->buf[buf].name])) {
      struct tensor *t = find_buffer_tensor (state, p->name[p->buf[buf].name], &p->buf[buf]);
      g_array_append_vals (t->buffers, &(struct buffer){ row, buf }, 1);
    }
}

/* Adds a contiguous range of elements. Consecutive tensor rows with the same columns become one run
 * with several lines. */
static void
add_run (struct tensor *t, const struct piece *piece, const struct weft_cut_run *found)
{
  struct weft_state_run run = { piece->row, found->first, found->n, 1 };

  if (t->runs->len > 0 && run.n < t->info.columns) {
    struct weft_state_run *last = &g_array_index (t->runs, struct weft_state_run, t->runs->len - 1);
    if (last->row == run.row && last->n == run.n &&
        last->first + last->lines * t->info.columns == run.first) {
      last->lines++;
      return;
    }
  }
  g_array_append_val (t->runs, run);
}

static void
add_owner (struct tensor *t, uint32_t copy, const struct piece *piece)
{
  const struct copy *c = copy_at (t, copy);
  struct owner owner = { copy, *piece };
  uint64_t end = piece->first + piece->n;
  struct weft_cut_run run;

  for (uint64_t at = piece->first; weft_cut_run (c->param, c->stage->part, at, end, &run);
       at = run.at + run.n)
    add_run (t, piece, &run);
  g_array_append_val (t->owners, owner);
}

/* For each piece of a copy, chooses the replica from which the elements are read. `turn` changes
 * with each tensor, so that all replicas write a share of a checkpoint. A frozen tensor is one
 * piece without a slice: every replica has it whole. */
static void
find_owners (struct tensor *t, uint32_t copy, uint32_t turn)
{
  const struct copy *c = copy_at (t, copy);
  const GArray *pieces = c->pieces;
  uint64_t reached = 0;

  if (c->param->frozen) {
    struct piece whole = { c->stage->row[turn % c->stage->n_place], 0, elements (c->param), 0,
                           NULL };
    add_owner (t, copy, &whole);
    return;
  }

  for (uint32_t i = 0, n; i < pieces->len; i += n) {
    const struct piece *first = &g_array_index (pieces, struct piece, i);
    for (n = 1; i + n < pieces->len && first[n].first == first->first; n++)
      g_assert (first[n].n == first->n);
    g_assert (first->first == reached);
    add_owner (t, copy, &first[turn % n]);
    reached += first->n;
  }
  g_assert (reached == elements (copy_at (t, copy)->param));
}

/* Finds, for all parts of a tensor, the ranges of elements that each rank owns (struct
 * weft_state_run). A tensor without optimizer state has one owner. */
static void
find_runs (struct tensor *t, uint32_t turn)
{
  uint32_t parts = t->buffers ? 0 : copy_at (t, 0)->param->ways;

  t->runs = g_array_new (FALSE, FALSE, sizeof (struct weft_state_run));
  t->owners = g_array_new (FALSE, FALSE, sizeof (struct owner));
  if (t->buffers) {
    const struct buffer *first = &g_array_index (t->buffers, struct buffer, turn % t->buffers->len);
    g_array_append_vals (t->runs, &(struct weft_state_run){ first->row, 0, t->info.rows, 1 }, 1);
  }
  for (uint32_t part = 0; part < parts; part++)
    find_owners (t, part, turn);
}

/* Whether the ranks of a stage have fp32 master weights beside their weights. Masters of fp8
 * weights do not count. */
static gboolean
has_master (const struct stage *stage)
{
  for (uint32_t k = 0; k < stage->n_slice; k++) {
    const struct weft_slice *slice = &stage->slice[0][k];
    if (slice->master != WEFT_NO_BUF && stage->p->buf[slice->weight].dtype != WEFT_FP8)
      return TRUE;
  }
  return FALSE;
}

static void
find_stages (weft_state *state, uint32_t role, struct stage *stage)
{
  for (uint32_t part = 0; part < n_dense (state); part++)
    find_stage (state->x, role, WEFT_GROUP_DP, part, stage++);
  for (uint32_t part = 0; part < n_experts (state); part++)
    find_stage (state->x, role, WEFT_GROUP_EDP, part, stage++);
}

/* Key for sorting tensors: tensors before the layers, then layers by number, then tensors after the
 * layers. */
static uint64_t
order_of (const struct tensor *t)
{
  const char *name = t->info.param;
  gboolean before = g_str_has_prefix (name, "embedding.") || g_str_has_prefix (name, "position.");

  return t->info.layer != WEFT_NO_LAYER ? 1 + (uint64_t) t->info.layer : before ? 0 : UINT64_MAX;
}

static int
compare_tensors (gconstpointer a, gconstpointer b)
{
  uint64_t x = order_of (a), y = order_of (b);
  return (x > y) - (x < y);
}

weft_state *
weft_state_new (weft_exec *x)
{
  weft_state *state = g_new0 (weft_state, 1);

  g_assert (!x->actors->folded);
  for (uint32_t row = 0; row < x->actors->n; row++)
    g_assert (x->actors->rank[row] == row);
  state->x = x;
  state->dtype = weft_job_dtype (&x->plan->job);
  uint32_t parts = n_dense (state) + n_experts (state);
  state->n_stage = x->plan->n_roles * parts;
  state->stage = g_new0 (struct stage, state->n_stage);
  state->tensors = g_array_new (FALSE, FALSE, sizeof (struct tensor));
  state->raw = g_malloc (MOST_AT_ONCE * sizeof (float));
  for (uint32_t role = 0; role < x->plan->n_roles; role++)
    find_stages (state, role, &state->stage[role * parts]);
  for (int duplicates = 0; duplicates < 2; duplicates++)
    for (uint32_t i = 0; i < state->n_stage; i += parts)
      add_stage (state, &state->stage[i], duplicates);
  for (uint32_t row = 0; row < x->actors->n; row++)
    add_buffers (state, row);
  /* sorted by layer, because a rank with interleaved stages has several parts of the model */
  g_array_sort (state->tensors, compare_tensors);
  for (uint32_t i = 0; i < state->tensors->len; i++)
    find_runs (&g_array_index (state->tensors, struct tensor, i), i);
  state->has_master = has_master (&state->stage[0]);
  return state;
}

static void
release_tensor (struct tensor *t)
{
  for (uint32_t c = 0; c < t->copies->len; c++)
    g_array_free (copy_at (t, c)->pieces, TRUE);
  g_array_free (t->copies, TRUE);
  g_array_free (t->runs, TRUE);
  g_array_free (t->owners, TRUE);
  if (t->buffers)
    g_array_free (t->buffers, TRUE);
  g_free (t->info.name);
}

static void
release_stage (struct stage *stage)
{
  for (uint32_t place = 0; place < stage->n_place; place++)
    g_free (stage->slice[place]);
  g_free (stage->slice);
  g_free (stage->row);
}

void
weft_state_free (weft_state *state)
{
  if (!state)
    return;
  for (uint32_t i = 0; i < state->tensors->len; i++)
    release_tensor (&g_array_index (state->tensors, struct tensor, i));
  for (uint32_t role = 0; role < state->n_stage; role++)
    release_stage (&state->stage[role]);
  g_array_free (state->tensors, TRUE);
  g_free (state->stage);
  g_free (state->raw);
  g_free (state->gathered);
  g_free (state);
}

/* ----------------------------------------------------------- reading and writing */

/* A range of elements of a tensor in a buffer of one rank. */
struct place {
  uint32_t row, buf;
  enum weft_dtype dtype;
  uint64_t at, n; /* the range of elements in the buffer */
};

static gboolean
is_fp8 (const struct copy *copy)
{
  return copy->param->scale != WEFT_NO_BUF;
}

/* Whether elements of this kind are in the weight buffer. In a job without master weights, the
 * weight is also the master, and so is a frozen weight. fp8 weights always have masters. */
static gboolean
is_weight (const weft_state *state, const struct copy *copy, enum weft_state_kind kind)
{
  return kind == WEFT_STATE_WEIGHT || (kind == WEFT_STATE_MASTER && copy->param->frozen) ||
         (kind == WEFT_STATE_MASTER && !state->has_master && !is_fp8 (copy));
}

static struct place
weight_place (const struct copy *copy, uint32_t row, uint64_t first, uint64_t n)
{
  uint32_t buf = copy->param->weight;

  return (struct place){ row, buf, copy->stage->p->buf[buf].dtype, first, n };
}

/* Index in the flat buffer of the first element of a slice's buffer. A shard buffer contains one
 * slice of its bucket, a weight buffer on the device the whole bucket, and any other buffer only
 * the slice. */
static uint64_t
first_in (const weft_program *p, const struct weft_slice *slice, uint32_t buf)
{
  if (p->buf[buf].shard)
    return slice->flat;
  return buf == slice->weight ? slice->first - slice->part : slice->first;
}

static struct place
slice_place (const weft_state *state, const struct copy *copy, const struct piece *piece,
             enum weft_state_kind kind, uint64_t first, uint64_t n)
{
  const struct weft_slice *slice = piece->slice;
  const weft_program *p = copy->stage->p;
  const uint32_t buffers[WEFT_N_STATE_KIND] = { [WEFT_STATE_WEIGHT] = slice->weight,
                                                [WEFT_STATE_MASTER] = slice->master,
                                                [WEFT_STATE_EXP_AVG] = slice->m,
                                                [WEFT_STATE_EXP_AVG_SQ] = slice->v,
                                                [WEFT_STATE_GRAD] = slice->grad };
  uint32_t buf = is_weight (state, copy, kind) ? slice->weight : buffers[kind];
  if (buf == WEFT_NO_BUF && kind == WEFT_STATE_MASTER)
    buf = slice->weight;
  uint64_t before = slice->first - first_in (p, slice, buf);

  return (struct place){ piece->row, buf, p->buf[buf].dtype,
                         before + piece->offset + first - piece->first, n };
}

/* The place of elements in the host copy of the weights, which an optimizer on the CPU updates. */
static struct place
host_place (const struct copy *copy, const struct piece *piece, uint64_t first, uint64_t n)
{
  uint32_t buf = piece->slice->copy;

  return (struct place){ piece->row, buf, copy->stage->p->buf[buf].dtype,
                         piece->offset + first - piece->first, n };
}

/* Whether each rank has its whole tensor-parallel part of the tensor (in a view of the flat
 * buffer), not only a slice of that part. */
static gboolean
holds_whole (const weft_state *state, const struct copy *copy, enum weft_state_kind kind)
{
  return is_weight (state, copy, kind) && copy->param->weight != WEFT_NO_BUF;
}

void *
weft_state_address (const weft_state *state, uint32_t tensor, uint32_t row)
{
  const struct tensor *t = tensor_at (state, tensor);

  for (uint32_t i = 0; t->buffers && i < t->buffers->len && state->x->ops->at; i++) {
    const struct buffer *buffer = &g_array_index (t->buffers, struct buffer, i);
    if (buffer->row == row)
      return state->x->ops->at (state->x, row, buffer->buf);
  }
  for (uint32_t c = 0; c < t->copies->len && copy_at (t, c)->param->cut == WEFT_CUT_NONE; c++) {
    const struct copy *copy = copy_at (t, c);
    if (!is_fp8 (copy) && copy->stage->p == state->x->plan->role[state->x->actors->role[row]] &&
        holds_whole (state, copy, WEFT_STATE_WEIGHT) && state->x->ops->at)
      return state->x->ops->at (state->x, row, copy->param->weight);
  }
  return NULL;
}

/* Reads elements of a buffer as floats: fp32 directly into `out`, other types through
 * state->raw. */
static void
fetch (weft_state *state, struct place place, float *out)
{
  uint32_t size = weft_dtype_bytes (place.dtype);

  if (!weft_exec_has (state->x, place.row)) {
    memset (out, 0, place.n * sizeof *out);
    return;
  }
  while (place.n) {
    uint64_t n = MIN (place.n, MOST_AT_ONCE);
    void *raw = place.dtype == WEFT_FP32 ? (void *) out : state->raw;
    state->x->ops->read (state->x, place.row, place.buf, place.at * size, n * size, raw);
    weft_floats (raw, place.dtype, 0, n, out);
    place.at += n, place.n -= n, out += n;
  }
}

/* Reads elements of a frozen tensor, whose moments and gradients are zero. */
static void
fetch_frozen (weft_state *state, struct place place, enum weft_state_kind kind, float *out)
{
  if (kind == WEFT_STATE_WEIGHT || kind == WEFT_STATE_MASTER)
    fetch (state, place, out);
  else
    memset (out, 0, place.n * sizeof *out);
}

/* Elements that are converted by several threads. */
struct conversion {
  void *to;
  enum weft_dtype dtype;
  const float *from;
};

static void
convert (void *data, uint64_t first, uint64_t n)
{
  const struct conversion *c = data;

  weft_store (c->to, c->dtype, first, n, c->from + first);
}

/* Writes elements of a buffer, converted in the memory from which the executor copies them if it
 * has such memory. */
static void
store (weft_state *state, struct place place, const float *in)
{
  const struct weft_exec_ops *ops = state->x->ops;
  uint32_t size = weft_dtype_bytes (place.dtype);

  while (place.n && weft_exec_has (state->x, place.row)) {
    uint64_t n = MIN (place.n, WEFT_EXEC_STAGING / size), at = place.at * size;
    void *to =
        ops->staging ? ops->staging (state->x, place.row, place.buf, at, n * size) : NULL;
    n = to ? n : MIN (n, MOST_AT_ONCE);
    struct conversion c = { to ? to : state->raw, place.dtype, in };
    weft_spread (n, convert, &c);
    ops->write (state->x, place.row, place.buf, at, n * size, c.to);
    place.at += n, place.n -= n, in += n;
  }
}

/* The range of elements of a tensor that a call reads or writes. */
struct window {
  uint64_t first, n;
};

/* Iterates over those elements of a copy that one piece (the elements of one owner) contains. */
struct walk {
  const struct copy *copy;
  uint64_t at, end;
};

static struct walk
walk_new (const struct copy *copy, const struct window *w, uint64_t at, uint64_t n)
{
  struct walk walk = { copy, at, at + n };

  weft_cut_narrow (copy->param, copy->stage->part, &(struct weft_cut_run){ 0, w->first, w->n },
                   &walk.at, &walk.end);
  return walk;
}

/* Finds the next contiguous range of elements that is inside the window. FALSE: no element is
 * left. */
static gboolean
next_run (struct walk *walk, const struct window *w, struct weft_cut_run *run)
{
  const struct copy *copy = walk->copy;

  while (weft_cut_run (copy->param, copy->stage->part, walk->at, walk->end, run)) {
    uint64_t begin = MAX (run->first, w->first), end = MIN (run->first + run->n, w->first + w->n);
    walk->at = run->at + run->n;
    if (begin < end) {
      *run = (struct weft_cut_run){ run->at + begin - run->first, begin, end - begin };
      return TRUE;
    }
  }
  return FALSE;
}

/* Reads a tensor without optimizer state: weight and master are one buffer, and other kinds are
 * zero. */
static void
read_buffers (weft_state *state, const struct tensor *t, enum weft_state_kind kind, struct window w,
              float *out)
{
  const struct buffer *buffer = &g_array_index (t->buffers, struct buffer, 0);

  for (uint32_t i = 1; i < t->buffers->len && !weft_exec_has (state->x, buffer->row); i++)
    buffer = &g_array_index (t->buffers, struct buffer, i);
  if (kind == WEFT_STATE_WEIGHT || kind == WEFT_STATE_MASTER)
    fetch (state, (struct place){ buffer->row, buffer->buf, WEFT_FP32, w.first, w.n }, out);
  else
    memset (out, 0, w.n * sizeof *out);
}

static void
write_buffers (weft_state *state, const struct tensor *t, enum weft_state_kind kind,
               struct window w, const float *in)
{
  for (uint32_t i = 0; i < t->buffers->len && kind <= WEFT_STATE_MASTER; i++) {
    const struct buffer *buffer = &g_array_index (t->buffers, struct buffer, i);
    store (state, (struct place){ buffer->row, buffer->buf, WEFT_FP32, w.first, w.n }, in);
  }
}

/* Reads the amax (largest magnitude) of an fp8 tensor from a rank of this process, or computes it
 * from the gathered masters. */
static float
largest_magnitude (weft_state *state, uint32_t tensor, const struct copy *copy)
{
  const struct weft_state_tensor *info = weft_state_at (state, tensor);
  uint32_t place = 0;
  float largest = 0;

  if (state->gathered && state->gathered_of == tensor) {
    for (uint64_t i = 0; i < info->rows * info->columns; i++)
      largest = fmaxf (largest, fabsf (state->gathered[i]));
    return largest;
  }
  while (place + 1 < copy->stage->n_place && !weft_exec_has (state->x, copy->stage->row[place]))
    place++;
  state->x->ops->read (state->x, copy->stage->row[place], copy->param->scale, 0, sizeof largest,
                       &largest);
  return largest;
}

/* Replaces the masters of an fp8 tensor in `out` by the values of their fp8 codes. */
static void
round_to_values (weft_state *state, uint32_t tensor, uint64_t first, uint64_t n, float *out)
{
  const struct copy *copy = copy_at (tensor_at (state, tensor), 0);
  uint64_t columns = copy->param->columns;

  if (copy->stage->p->buf[copy->param->scale].dtype == WEFT_FP32) {
    weft_quantised_values (out, n, largest_magnitude (state, tensor, copy));
    return;
  }
  g_autofree float *row = g_new (float, columns);
  for (uint64_t at = first, few; at < first + n; at += few) {
    few = MIN (columns - at % columns, first + n - at);
    weft_state_read (state, tensor, WEFT_STATE_MASTER, at / columns * columns, columns, row);
    weft_quantised_row (row, columns);
    memcpy (out + (at - first), row + at % columns, few * sizeof *row);
  }
}

void
weft_state_read (weft_state *state, uint32_t tensor, enum weft_state_kind kind, uint64_t first,
                 uint64_t n, float *out)
{
  const struct tensor *t = tensor_at (state, tensor);
  const struct window w = { first, n };
  struct weft_cut_run run;

  if (t->buffers) {
    read_buffers (state, t, kind, w, out);
    return;
  }
  gboolean rounds = kind == WEFT_STATE_WEIGHT && is_fp8 (copy_at (t, 0));

  g_assert (first <= weft_cut_whole (copy_at (t, 0)->param) &&
            n <= weft_cut_whole (copy_at (t, 0)->param) - first);
  kind = rounds ? WEFT_STATE_MASTER : kind;
  gboolean here = state->gathered && state->gathered_of == tensor && kind == WEFT_STATE_MASTER;
  if (here)
    memcpy (out, state->gathered + first, n * sizeof *out);
  for (uint32_t i = 0; i < t->owners->len && !here; i++) {
    const struct owner *owner = &g_array_index (t->owners, struct owner, i);
    const struct copy *copy = copy_at (t, owner->copy);
    struct walk walk = walk_new (copy, &w, owner->piece.first, owner->piece.n);
    while (next_run (&walk, &w, &run)) {
      float *to = out + (run.first - first);
      if (owner->piece.slice)
        fetch (state, slice_place (state, copy, &owner->piece, kind, run.at, run.n), to);
      else
        fetch_frozen (state, weight_place (copy, owner->piece.row, run.at, run.n), kind, to);
      if (kind == WEFT_STATE_WEIGHT)
        weft_round (state->dtype, run.n, to);
    }
  }
  if (rounds)
    round_to_values (state, tensor, first, n, out);
}

/* Whether the weights are rounded from this place in every step: FSDP2 stores only fp32 masters and
 * casts them in the all-gather. Writing rounded weights there would only lose bits. */
static gboolean
is_derived (const weft_state *state, const struct place *place, enum weft_state_kind kind)
{
  return kind == WEFT_STATE_WEIGHT && place->dtype != state->dtype;
}

static void
write_slices (weft_state *state, const struct copy *copy, enum weft_state_kind kind,
              const struct window *w, const float *in)
{
  struct weft_cut_run run;

  for (uint32_t i = 0; i < copy->pieces->len; i++) {
    const struct piece *piece = &g_array_index (copy->pieces, struct piece, i);
    struct walk walk = walk_new (copy, w, piece->first, piece->n);
    while (next_run (&walk, w, &run)) {
      struct place place = slice_place (state, copy, piece, kind, run.at, run.n);
      if (!is_derived (state, &place, kind))
        store (state, place, in + (run.first - w->first));
    }
  }
}

static void
write_host_copies (weft_state *state, const struct copy *copy, const struct window *w,
                   const float *in)
{
  struct weft_cut_run run;

  for (uint32_t i = 0; i < copy->pieces->len; i++) {
    const struct piece *piece = &g_array_index (copy->pieces, struct piece, i);
    struct walk walk = walk_new (copy, w, piece->first, piece->n);
    while (piece->slice->copy != WEFT_NO_BUF && next_run (&walk, w, &run))
      store (state, host_place (copy, piece, run.at, run.n), in + (run.first - w->first));
  }
}

static void
write_weights (weft_state *state, const struct copy *copy, const struct window *w, const float *in)
{
  struct walk walk = walk_new (copy, w, 0, elements (copy->param));
  struct weft_cut_run run;

  while (next_run (&walk, w, &run))
    for (uint32_t place = 0; place < copy->stage->n_place; place++)
      store (state, weight_place (copy, copy->stage->row[place], run.at, run.n),
             in + (run.first - w->first));
}

void
weft_state_write (weft_state *state, uint32_t tensor, enum weft_state_kind kind, uint64_t first,
                  uint64_t n, const float *in)
{
  struct tensor *t = tensor_at (state, tensor);
  const struct window w = { first, n };

  if (kind == WEFT_STATE_EXP_AVG || kind == WEFT_STATE_EXP_AVG_SQ)
    state->x->fresh = FALSE;
  if (t->buffers) {
    write_buffers (state, t, kind, w, in);
    return;
  }
  gboolean codes = is_fp8 (copy_at (t, 0));

  g_assert (first <= weft_cut_whole (copy_at (t, 0)->param) &&
            n <= weft_cut_whole (copy_at (t, 0)->param) - first);
  if (kind == WEFT_STATE_WEIGHT && codes)
    return;
  t->stale |= kind == WEFT_STATE_MASTER && codes;
  for (uint32_t c = 0; c < t->copies->len; c++) {
    const struct copy *copy = copy_at (t, c);
    if (is_weight (state, copy, kind))
      write_host_copies (state, copy, &w, in);
    if (holds_whole (state, copy, kind))
      write_weights (state, copy, &w, in);
    else
      write_slices (state, copy, kind, &w, in);
  }
}

/* ---------------------------------------------------------------------- fp8 weights */

/* Writes the fp8 codes of weights that are sharded in slices. */
static void
write_codes (weft_state *state, const struct copy *copy, const uint8_t *code)
{
  for (uint32_t i = 0; i < copy->pieces->len; i++) {
    const struct piece *piece = &g_array_index (copy->pieces, struct piece, i);
    struct place to = slice_place (state, copy, piece, WEFT_STATE_WEIGHT, piece->first, piece->n);
    state->x->ops->write (state->x, to.row, to.buf, to.at, to.n, code + piece->first);
  }
}

static void
quantise_copy (weft_state *state, uint32_t tensor, const struct copy *copy)
{
  const struct stage *stage = copy->stage;
  uint64_t n = elements (copy->param);
  g_autofree float *master = g_new (float, n);
  struct weft_quantised q;

  weft_state_read (state, tensor, WEFT_STATE_MASTER, 0, n, master);
  weft_quantised_init (&q, stage->p, copy->param, master);
  for (uint32_t place = 0; place < stage->n_place; place++)
    for (int part = 0; part < WEFT_N_QUANTISED; part++)
      if (q.buf[part] != WEFT_NO_BUF)
        state->x->ops->write (state->x, stage->row[place], q.buf[part], 0, q.bytes[part],
                              q.data[part]);
  if (q.buf[WEFT_CODES] == WEFT_NO_BUF)
    write_codes (state, copy, q.data[WEFT_CODES]);
  weft_quantised_release (&q);
}

/* Quantises the fp8 codes of every copy of the tensor from its masters. */
static void
quantise_tensor (weft_state *state, uint32_t tensor)
{
  const struct tensor *t = tensor_at (state, tensor);

  for (uint32_t c = 0; c < t->copies->len; c++)
    quantise_copy (state, tensor, copy_at (t, c));
}

gboolean
weft_state_quantise (weft_state *state, GError **error)
{
  for (uint32_t i = 0; i < state->tensors->len; i++)
    if (tensor_at (state, i)->stale) {
      if (!weft_state_gather (state, i, error))
        return FALSE;
      quantise_tensor (state, i);
      tensor_at (state, i)->stale = FALSE;
    }
  weft_state_drop_gathered (state);
  return TRUE;
}

void
weft_state_drop_gathered (weft_state *state)
{
  g_clear_pointer (&state->gathered, g_free);
}

gboolean
weft_state_gather (weft_state *state, uint32_t tensor, GError **error)
{
  const struct tensor *t = tensor_at (state, tensor);
  uint64_t n = t->info.rows * t->info.columns;

  if (!state->x->peers || t->info.dtype != WEFT_FP8 ||
      (state->gathered && state->gathered_of == tensor))
    return TRUE;
  weft_state_drop_gathered (state);
  g_autofree float *gathered = g_new (float, n);
  weft_state_read (state, tensor, WEFT_STATE_MASTER, 0, n, gathered);
  if (!weft_processes_merge_floats (state->x->peers, "masters of weights in fp8",
                                    WEFT_PROCESSES_ALL, gathered, n, error))
    return FALSE;
  state->gathered = g_steal_pointer (&gathered);
  state->gathered_of = tensor;
  return TRUE;
}
