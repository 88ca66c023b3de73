#include "train/state_parts.h"
#include "core/program/cut.h"
#include "kernels/float.h"
#include "train/quantised.h"
#include "train/spread.h"
#include "train/processes.h"
#include <math.h>
#include <string.h>

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

gboolean
weft_state_keeps (const weft_state *state, uint32_t tensor, enum weft_state_kind kind)
{
  static const uint8_t rule[WEFT_N_STATE_KIND] = { [WEFT_STATE_MOMENTUM] = WEFT_MUON,
                                                   [WEFT_STATE_STATE1] = WEFT_ADAMW_8BIT,
                                                   [WEFT_STATE_STATE2] = WEFT_ADAMW_8BIT };
  const struct weft_state_tensor *info = &tensor_at (state, tensor)->info;

  if (info->scales)
    return kind == WEFT_STATE_MASTER;
  if (kind <= WEFT_STATE_MASTER || kind == WEFT_STATE_GRAD)
    return TRUE;
  return rule[kind] == info->rule;
}

/* Whether elements of this kind are in the weight buffer. In a job without master weights, the
 * weight is also the master, and so is a frozen weight. fp8 weights always have masters. */
static gboolean
is_weight (const weft_state *state, const struct copy *copy, enum weft_state_kind kind)
{
  if (copy->scales)
    return FALSE;
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
                                                [WEFT_STATE_MOMENTUM] = slice->m,
                                                [WEFT_STATE_STATE1] = slice->m,
                                                [WEFT_STATE_STATE2] = slice->v,
                                                [WEFT_STATE_GRAD] = slice->grad };
  uint32_t buf = is_weight (state, copy, kind) ? slice->weight : buffers[kind];
  if (buf == WEFT_NO_BUF && kind == WEFT_STATE_MASTER)
    buf = slice->weight;
  if (copy->scales)
    buf = copy->scales == WEFT_STATE_STATE1 ? slice->m_scale : slice->v_scale;
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

  if (!weft_state_keeps (state, tensor, kind)) {
    memset (out, 0, n * sizeof *out);
    return;
  }
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

  if (!weft_state_keeps (state, tensor, kind))
    return;
  if ((kind > WEFT_STATE_MASTER && kind < WEFT_STATE_GRAD) || t->info.scales)
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
