#include "kernels/sums.h"
#include "core/base/fold.h"
#include "kernels/float.h"

uint32_t
weft_sums_chunks (const struct weft_kernel *k)
{
  return k->canonical ? weft_chunks ((uint64_t) k->model->seq_length) / MAX (1, k->cp.of) : 1;
}

struct weft_leaves
weft_sums_leaves (const struct weft_kernel *k, uint64_t tokens)
{
  return weft_sums_leaves_of (k, tokens, 1);
}

struct weft_leaves
weft_sums_leaves_of (const struct weft_kernel *k, uint64_t tokens, uint64_t passes)
{
  uint64_t sequence = passes * weft_kernel_sequence (k);

  if (!k->canonical || tokens == 0)
    return weft_leaves_one (tokens);
  uint32_t each = weft_sums_chunks (k);
  return (struct weft_leaves){ .n = (uint32_t) ((tokens + sequence - 1) / sequence) * each,
                               .segment[0] = { 0, tokens, sequence / each },
                               .zigzag = each };
}

uint32_t
weft_sums_depth (uint32_t n_leaf)
{
  return weft_fold_depth (n_leaf);
}

WEFT_WIDE void
weft_sums_add (float *sum, const float *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    sum[i] += x[i];
}

/* For a leaf without rows: adds 0, which changes only -0 (to 0). */
WEFT_WIDE static void
add_nothing (float *sum, const float *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    sum[i] = x[i] + 0.0f;
}

static void
join_sums (void *sums, uint32_t below)
{
  struct weft_sums *s = sums;
  uint32_t above = below + 1;
  float *sum = s->room + below * s->n;
  const float *term = s->room + above * s->n;

  if (s->empty[above] && s->empty[below])
    return;
  if (s->empty[above])
    add_nothing (sum, sum, s->n);
  else if (s->empty[below])
    add_nothing (sum, term, s->n);
  else
    weft_sums_add (sum, term, s->n);
  s->empty[below] = FALSE;
  weft_round (s->output->dtype, s->n, sum);
}

static void
push (struct weft_sums *s, gboolean empty)
{
  s->empty[s->top] = empty;
  s->top = weft_fold_push (s->top, s->leaf++, s->n_leaf, join_sums, s);
}

float *
weft_sums_leaf (struct weft_sums *s)
{
  return memset (s->room + s->top * s->n, 0, s->n * sizeof *s->room);
}

void
weft_sums_close (struct weft_sums *s)
{
  if (s->rounds)
    weft_round (s->output->dtype, s->n, s->room + s->top * s->n);
  push (s, FALSE);
}

void
weft_sums_skip (struct weft_sums *s)
{
  push (s, TRUE);
}

void
weft_sums_store (struct weft_sums *s, uint64_t first)
{
  const struct weft_operand *o = s->output;
  float room[WEFT_STRETCH];

  if (s->empty[0])
    memset (s->room, 0, s->n * sizeof *s->room);
  for (uint64_t c = 0; c < s->n && o->accumulate; c += WEFT_STRETCH) {
    uint64_t n = weft_least (s->n - c, WEFT_STRETCH);
    weft_sums_add (s->room + c, weft_floats (o->data, o->dtype, first + c, n, room), n);
  }
  weft_store (o->data, o->dtype, first, s->n, s->room);
}
