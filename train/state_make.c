/* Makes the state of a job: its tensors, and which ranks own which of their elements. */
#include "train/state_parts.h"
#include "core/program/cut.h"
#include <string.h>

static void
find_stage (const weft_exec *x, uint32_t role, enum weft_group_kind replicas, uint32_t part,
            struct stage *stage)
{
  const struct weft_mesh *mesh = &x->plan->mesh;
  struct weft_group g = weft_mesh_group (mesh, weft_mesh_stage_rank (mesh, role, part), replicas);

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

/* Turns a run of elements into the run of their scales. Parameters and slices begin at multiples of
 * a block. */
static void
count_blocks (struct weft_segment *segment)
{
  segment->start /= WEFT_8BIT_BLOCK;
  segment->offset /= WEFT_8BIT_BLOCK;
  segment->n = (segment->n + WEFT_8BIT_BLOCK - 1) / WEFT_8BIT_BLOCK;
}

/* Adds those parts of parameter `owner` whose optimizer state is in the slices of group member
 * `place`. `copy` is of this parameter, or of its scales. */
static void
add_pieces (struct copy *copy, uint32_t place, const struct weft_param *owner)
{
  const struct stage *stage = copy->stage;

  for (uint32_t k = 0; k < stage->n_slice; k++) {
    const struct weft_slice *slice = &stage->slice[place][k];
    struct weft_segment segment;
    if (!weft_param_segment (owner, slice->first, slice->n, &segment))
      continue;
    if (copy->scales)
      count_blocks (&segment);
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
add_copy (struct tensor *t, const struct stage *stage, const struct weft_param *param,
          const struct weft_param *owner)
{
  struct copy copy = { stage, param, t->info.scales,
                       g_array_new (FALSE, FALSE, sizeof (struct piece)) };

  for (uint32_t place = 0; place < stage->n_place; place++)
    add_pieces (&copy, place, owner);
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

/* Adds the tensor-parallel (or expert-parallel) parts of a parameter to its tensor, or those of its
 * scales (`param`) to theirs. `stage` describes the ranks that have part 0. */
static void
add_copies (const weft_state *state, struct tensor *t, const struct stage *stage,
            const struct weft_param *param, const struct weft_param *owner)
{
  gboolean expert = param->group == WEFT_GROUP_TP_EP;
  const struct stage *parts = expert ? stage + n_dense (state) : stage;
  uint32_t n = expert ? n_experts (state) : n_dense (state);

  for (uint32_t part = 0; part < n; part++)
    add_copy (t, parts + part, param, owner);
}

/* How the optimizer updates a parameter, according to the slice that has its first element. */
static enum weft_optimizer
rule_of (const struct stage *stage, const struct weft_param *param)
{
  struct weft_segment segment;

  for (uint32_t place = 0; place < stage->n_place; place++)
    for (uint32_t k = 0; k < stage->n_slice; k++) {
      const struct weft_slice *slice = &stage->slice[place][k];
      if (!param->frozen && weft_param_segment (param, slice->first, slice->n, &segment))
        return slice->rule;
    }
  return WEFT_ADAM;
}

static char *
name_of (const struct weft_param *param, const char *name)
{
  return param->layer == WEFT_NO_LAYER ? g_strdup (name)
                                       : g_strdup_printf ("layers.%u.%s", param->layer, name);
}

/* The parameter that stands for the scales of the 8-bit moments of `of`: one column, the blocks of
 * one part after those of the other. Owned by the state. */
static struct weft_param *
scales_of (weft_state *state, const struct weft_param *of)
{
  struct weft_param *scales = g_new0 (struct weft_param, 1);

  *scales = (struct weft_param){ .name = of->name,
                                 .layer = of->layer,
                                 .tied = of->tied,
                                 .weight = WEFT_NO_BUF,
                                 .grad = WEFT_NO_BUF,
                                 .scale = WEFT_NO_BUF,
                                 .rows = (elements (of) + WEFT_8BIT_BLOCK - 1) / WEFT_8BIT_BLOCK,
                                 .columns = 1,
                                 .whole_columns = 1,
                                 .ways = of->ways,
                                 .cut = of->ways > 1 ? WEFT_CUT_ROWS : WEFT_CUT_NONE,
                                 .group = of->group };
  scales->whole_rows = scales->rows * of->ways;
  g_ptr_array_add (state->scales, scales);
  return scales;
}

/* Adds the scales of both moments of a parameter as tensors, under the names of bitsandbytes. */
static void
add_scales (weft_state *state, const struct stage *stage, const struct weft_param *param)
{
  for (enum weft_state_kind kind = WEFT_STATE_STATE1; kind <= WEFT_STATE_STATE2; kind++) {
    g_autofree char *name = name_of (param, stage->p->name[param->name]);
    const struct weft_param *scales = scales_of (state, param);
    struct tensor t = { .info = { .name = g_strdup_printf ("%s" WEFT_ABSMAX_SUFFIX "%c", name,
                                                           kind == WEFT_STATE_STATE1 ? '1' : '2'),
                                  .param = stage->p->name[param->name],
                                  .layer = param->layer,
                                  .rows = scales->whole_rows,
                                  .columns = 1,
                                  .dtype = WEFT_FP32,
                                  .scales = kind },
                        .copies = g_array_new (FALSE, FALSE, sizeof (struct copy)) };
    add_copies (state, &t, stage, scales, param);
    g_array_append_val (state->tensors, t);
  }
}

static void
add_tensor (weft_state *state, const struct stage *stage, const struct weft_param *param)
{
  const char *name = stage->p->name[param->name];
  struct tensor t = { .info = { .name = name_of (param, name),
                                .param = name,
                                .layer = param->layer,
                                .rows = param->whole_rows,
                                .columns = param->whole_columns,
                                .decay = param->decay,
                                .dtype = param->scale == WEFT_NO_BUF ? state->dtype : WEFT_FP8,
                                .rule = rule_of (stage, param),
                                .frozen = param->frozen } };

  t.copies = g_array_new (FALSE, FALSE, sizeof (struct copy));
  add_copies (state, &t, stage, param, param);
  g_array_append_val (state->tensors, t);
  if (t.info.rule == WEFT_ADAMW_8BIT)
    add_scales (state, stage, param);
}

/* Adds the copies that a second pipeline stage has of a tensor: the head of a tied embedding, or
 * all tensors of a stage that exists twice (DualPipe). */
static void
add_duplicate (weft_state *state, const struct stage *stage, const struct weft_param *param)
{
  const char *name = stage->p->name[param->name];
  uint32_t found = UINT32_MAX;

  for (uint32_t i = 0; i < state->tensors->len; i++) {
    const struct tensor *t = tensor_at (state, i);
    gboolean same = t->info.layer == param->layer && strcmp (t->info.param, name) == 0;
    if (!t->info.scales && (same || (found == UINT32_MAX && param->tied &&
                                     copy_at (t, 0)->param->tied)))
      found = i;
  }
  add_copies (state, tensor_at (state, found), stage, param, param);
  /* the scales of its moments are the next two tensors */
  for (uint32_t i = 1; i <= 2 && tensor_at (state, found)->info.rule == WEFT_ADAMW_8BIT; i++)
    add_copies (state, tensor_at (state, found + i), stage, scales_of (state, param), param);
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
  state->scales = g_ptr_array_new_with_free_func (g_free);
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
  g_ptr_array_unref (state->scales);
  g_free (state->stage);
  g_free (state->raw);
  g_free (state->gathered);
  g_free (state);
}
