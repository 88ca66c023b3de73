/* Causal attention as a cuDNN graph, in the sequence of operations that cuDNN recognises as fused
 * attention (documentation of its graph API, "fused flash attention"; NVIDIA/cudnn-frontend builds
 * the same graph). Heads are dimensions with strides inside token rows, so no data is moved:
 * queries, keys and values are read in place. */
#include "kernels/cuda/cudnn_attention.h"
#include "core/base/words.h"
#include <math.h>

enum { QKV, O, LSE, DO, DQKV }; /* slots */

struct attention {
  weft_cudnn_graph *g;
  const struct weft_cudnn_shape *s;
  struct weft_cudnn_view q, k, v, o; /* layout of the keys and of the values: one row per token */
  struct weft_cudnn_view scores, row;
  uint64_t at_k, at_v; /* first column of the keys, and of the values, in a token's row */
  int type;
};

static struct weft_cudnn_view
view_of (int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
  return (struct weft_cudnn_view){ { batch, heads, rows, columns },
                                   { heads * rows * columns, rows * columns, columns, 1 } };
}

/* Describes heads that lie side by side in rows of `row` elements. */
static struct weft_cudnn_view
heads_in_rows (const struct weft_cudnn_shape *s, uint64_t heads, uint64_t width, uint64_t row)
{
  struct weft_cudnn_view v =
      view_of ((int64_t) s->batch, (int64_t) heads, (int64_t) s->tokens, (int64_t) width);

  v.stride[0] = (int64_t) (s->tokens * row);
  v.stride[1] = (int64_t) width;
  v.stride[2] = (int64_t) row;
  return v;
}

static struct weft_cudnn_view
turned (struct weft_cudnn_view v)
{
  int64_t dim = v.dim[2], stride = v.stride[2];

  v.dim[2] = v.dim[3];
  v.stride[2] = v.stride[3];
  v.dim[3] = dim;
  v.stride[3] = stride;
  return v;
}

static struct attention
attention_of (weft_cudnn_graph *g, const struct weft_cudnn_shape *s)
{
  uint64_t row = (s->heads + s->groups) * s->width + s->groups * s->value;
  int64_t batch = (int64_t) s->batch, heads = (int64_t) s->heads, tokens = (int64_t) s->tokens;

  return (struct attention){ .g = g,
                             .s = s,
                             .q = heads_in_rows (s, s->heads, s->width, row),
                             .k = heads_in_rows (s, s->groups, s->width, row),
                             .v = heads_in_rows (s, s->groups, s->value, row),
                             .o = heads_in_rows (s, s->heads, s->value, s->heads * s->value),
                             .scores = view_of (batch, heads, tokens, tokens),
                             .row = view_of (batch, heads, tokens, 1),
                             .at_k = s->heads * s->width,
                             .at_v = (s->heads + s->groups) * s->width,
                             .type = s->dtype == WEFT_BF16 ? WEFT_CUDNN_BF16 : WEFT_CUDNN_HALF };
}

/* -------------------------------------------------------------------- pointwise operations */

/* Appends a pointwise operation whose result is a new fp32 tensor of the given shape. */
static weft_cudnn_thing
point (const struct attention *a, int mode, const struct weft_cudnn_view *view, weft_cudnn_thing x,
       weft_cudnn_thing b)
{
  weft_cudnn_thing y = weft_cudnn_between (a->g, WEFT_CUDNN_FLOAT, view);

  weft_cudnn_pointwise (a->g,
                        &(struct weft_cudnn_point){
                            .mode = mode, .precision = WEFT_CUDNN_FLOAT, .x = x, .b = b, .y = y });
  return y;
}

static weft_cudnn_thing
index_along (const struct attention *a, int64_t axis, weft_cudnn_thing scores)
{
  weft_cudnn_thing y = weft_cudnn_between (a->g, WEFT_CUDNN_INT32, &a->scores);

  weft_cudnn_pointwise (a->g, &(struct weft_cudnn_point){ .mode = WEFT_CUDNN_GEN_INDEX,
                                                          .precision = WEFT_CUDNN_FLOAT,
                                                          .axis = axis,
                                                          .x = scores,
                                                          .y = y });
  return y;
}

/* Appends operations that keep the scores where a comparison holds, and replace them by minus
 * infinity elsewhere. */
static weft_cudnn_thing
where (const struct attention *a, int mode, const weft_cudnn_thing compared[2],
       weft_cudnn_thing scores)
{
  weft_cudnn_thing seen = weft_cudnn_between (a->g, WEFT_CUDNN_BOOLEAN, &a->scores);
  weft_cudnn_thing never = weft_cudnn_number (a->g, -INFINITY);
  weft_cudnn_thing y = weft_cudnn_between (a->g, WEFT_CUDNN_FLOAT, &a->scores);

  weft_cudnn_pointwise (a->g, &(struct weft_cudnn_point){ .mode = mode,
                                                          .precision = WEFT_CUDNN_BOOLEAN,
                                                          .x = compared[0],
                                                          .b = compared[1],
                                                          .y = seen });
  weft_cudnn_pointwise (a->g, &(struct weft_cudnn_point){ .mode = WEFT_CUDNN_SELECT,
                                                          .precision = WEFT_CUDNN_FLOAT,
                                                          .x = scores,
                                                          .b = never,
                                                          .t = seen,
                                                          .y = y });
  return y;
}

/* Appends the causal mask, with an optional sliding window. */
static weft_cudnn_thing
mask (const struct attention *a, weft_cudnn_thing scores)
{
  weft_cudnn_thing query = index_along (a, 2, scores), key = index_along (a, 3, scores);
  weft_cudnn_thing causal =
      where (a, WEFT_CUDNN_CMP_GE, (const weft_cudnn_thing[]){ query, key }, scores);

  if (a->s->window == 0 || a->s->window >= a->s->tokens)
    return causal;
  query = index_along (a, 2, causal);
  key = index_along (a, 3, causal);
  weft_cudnn_thing last =
      point (a, WEFT_CUDNN_ADD, &a->scores, key, weft_cudnn_number (a->g, (float) a->s->window));
  return where (a, WEFT_CUDNN_CMP_GT, (const weft_cudnn_thing[]){ last, query }, causal);
}

static weft_cudnn_thing
product (const struct attention *a, const struct weft_cudnn_view *view, weft_cudnn_thing x,
         weft_cudnn_thing y)
{
  weft_cudnn_thing z = weft_cudnn_between (a->g, WEFT_CUDNN_FLOAT, view);

  weft_cudnn_matmul (a->g, x, y, z);
  return z;
}

static weft_cudnn_thing
sum (const struct attention *a, int operator, weft_cudnn_thing x)
{
  weft_cudnn_thing y = weft_cudnn_between (a->g, WEFT_CUDNN_FLOAT, &a->row);

  weft_cudnn_reduce (a->g, operator, x, y);
  return y;
}

/* ----------------------------------------------------------------------------------- graphs */

/* Builds the forward graph. lse is the natural log-sum-exp of the scaled scores: max + log (sum of
 * exp (score - max)). */
static void
forward (const struct attention *a, weft_cudnn_thing q, weft_cudnn_thing kt, weft_cudnn_thing scale)
{
  weft_cudnn_thing v = weft_cudnn_tensor (a->g, a->type, &a->v, QKV, a->at_v);
  weft_cudnn_thing o = weft_cudnn_tensor (a->g, a->type, &a->o, O, 0);
  weft_cudnn_thing lse = weft_cudnn_tensor (a->g, WEFT_CUDNN_FLOAT, &a->row, LSE, 0);
  weft_cudnn_thing p = weft_cudnn_between (a->g, a->type, &a->scores);
  weft_cudnn_thing s =
      mask (a, point (a, WEFT_CUDNN_MUL, &a->scores, product (a, &a->scores, q, kt), scale));
  weft_cudnn_thing most = sum (a, WEFT_CUDNN_REDUCE_MAX, s);
  weft_cudnn_thing e =
      point (a, WEFT_CUDNN_EXP, &a->scores, point (a, WEFT_CUDNN_SUB, &a->scores, s, most), NULL);
  weft_cudnn_thing total = sum (a, WEFT_CUDNN_REDUCE_ADD, e);
  struct weft_cudnn_point last = { .mode = WEFT_CUDNN_ADD, .precision = WEFT_CUDNN_FLOAT };

  last.x = most;
  last.b = point (a, WEFT_CUDNN_LOG, &a->row, total, NULL);
  last.y = lse;
  weft_cudnn_pointwise (a->g, &last);
  last.mode = WEFT_CUDNN_DIV;
  last.x = e;
  last.b = total;
  last.y = p;
  weft_cudnn_pointwise (a->g, &last);
  weft_cudnn_matmul (a->g, p, v, o);
}

/* Builds the gradient of keys or values: the contributions of the query heads, summed over the
 * heads of a group. */
static void
key_gradient (const struct attention *a, weft_cudnn_thing scores, weft_cudnn_thing rows,
              weft_cudnn_thing out, uint64_t width)
{
  struct weft_cudnn_view t = turned (a->scores);
  struct weft_cudnn_view each = view_of ((int64_t) a->s->batch, (int64_t) a->s->heads,
                                         (int64_t) a->s->tokens, (int64_t) width);
  weft_cudnn_thing by_key = weft_cudnn_between (a->g, a->type, &t);

  weft_cudnn_reshape (a->g, scores, by_key);
  if (a->s->heads == a->s->groups) {
    weft_cudnn_matmul (a->g, by_key, rows, out);
    return;
  }
  weft_cudnn_thing of_heads = weft_cudnn_between (a->g, a->type, &each);
  weft_cudnn_matmul (a->g, by_key, rows, of_heads);
  weft_cudnn_reduce (a->g, WEFT_CUDNN_REDUCE_ADD, of_heads, out);
}

/* Gradient of queries. By default, key blocks accumulate into it in fp32 in no fixed order. In
 * deterministic mode, gradients of scores are stored, and one product follows. Only the form of the
 * graph selects the mode (as in NVIDIA/cudnn-frontend on Hopper); the engines' notes do not show
 * it. */
static void
query_gradient (const struct attention *a, weft_cudnn_thing ds, weft_cudnn_thing kt)
{
  weft_cudnn_thing dq = weft_cudnn_tensor (a->g, a->type, &a->q, DQKV, 0);
  weft_cudnn_thing k = weft_cudnn_between (a->g, a->type, &a->k);

  weft_cudnn_reshape (a->g, kt, k);
  if (a->s->same) {
    weft_cudnn_matmul (a->g, ds, k, dq);
    return;
  }
  struct weft_cudnn_view whole = view_of (a->q.dim[0], a->q.dim[1], a->q.dim[2], a->q.dim[3]);
  weft_cudnn_thing added = weft_cudnn_kept (a->g, &whole);
  weft_cudnn_matmul (a->g, ds, k, added);
  weft_cudnn_pointwise (
      a->g, &(struct weft_cudnn_point){
                .mode = WEFT_CUDNN_IDENTITY, .precision = WEFT_CUDNN_FLOAT, .x = added, .y = dq });
}

/* Appends the dot product of do and o for each query. */
static weft_cudnn_thing
delta_of (const struct attention *a, weft_cudnn_thing d_o)
{
  weft_cudnn_thing o = weft_cudnn_tensor (a->g, a->type, &a->o, O, 0);
  struct weft_cudnn_view rows = view_of (a->o.dim[0], a->o.dim[1], a->o.dim[2], a->o.dim[3]);
  weft_cudnn_thing total = sum (a, WEFT_CUDNN_REDUCE_ADD, point (a, WEFT_CUDNN_MUL, &rows, d_o, o));
  weft_cudnn_thing kept = weft_cudnn_kept (a->g, &a->row);

  weft_cudnn_pointwise (a->g, &(struct weft_cudnn_point){ .mode = WEFT_CUDNN_MUL,
                                                          .precision = WEFT_CUDNN_FLOAT,
                                                          .x = total,
                                                          .b = weft_cudnn_number (a->g, 1),
                                                          .y = kept });
  return kept;
}

static void
backward (const struct attention *a, weft_cudnn_thing q, weft_cudnn_thing kt,
          weft_cudnn_thing scale)
{
  struct weft_cudnn_view v_turned = turned (a->v);
  weft_cudnn_thing d_o = weft_cudnn_tensor (a->g, a->type, &a->o, DO, 0);
  weft_cudnn_thing delta = delta_of (a, d_o);
  weft_cudnn_thing lse = weft_cudnn_tensor (a->g, WEFT_CUDNN_FLOAT, &a->row, LSE, 0);
  weft_cudnn_thing vt = weft_cudnn_tensor (a->g, a->type, &v_turned, QKV, a->at_v);
  weft_cudnn_thing dk = weft_cudnn_tensor (a->g, a->type, &a->k, DQKV, a->at_k);
  weft_cudnn_thing dv = weft_cudnn_tensor (a->g, a->type, &a->v, DQKV, a->at_v);

  weft_cudnn_thing s = point (a, WEFT_CUDNN_MUL, &a->scores, product (a, &a->scores, q, kt), scale);
  s = mask (a, point (a, WEFT_CUDNN_SUB, &a->scores, s, lse));
  weft_cudnn_thing p = point (a, WEFT_CUDNN_EXP, &a->scores, s, NULL);
  key_gradient (a, p, d_o, dv, a->s->value);

  weft_cudnn_thing ds =
      point (a, WEFT_CUDNN_SUB, &a->scores, product (a, &a->scores, d_o, vt), delta);
  ds = point (a, WEFT_CUDNN_MUL, &a->scores, ds, p);
  ds = point (a, WEFT_CUDNN_MUL, &a->scores, ds, scale);
  key_gradient (a, ds, q, dk, a->s->width);
  query_gradient (a, ds, kt);
}

gboolean
weft_cudnn_attention_build (weft_cudnn_graph *g, const struct weft_cudnn_shape *s)
{
  const struct attention a = attention_of (g, s);
  struct weft_cudnn_view k_turned = turned (a.k);
  weft_cudnn_thing q = weft_cudnn_tensor (g, a.type, &a.q, QKV, 0);
  weft_cudnn_thing kt = weft_cudnn_tensor (g, a.type, &k_turned, QKV, a.at_k);
  weft_cudnn_thing scale = weft_cudnn_number (g, 1 / sqrtf ((float) s->width));

  (s->backward ? backward : forward) (&a, q, kt, scale);
  return weft_cudnn_finish (g);
}
