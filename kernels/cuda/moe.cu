/* MoE router: selection of experts, token counts per expert, row numbers (kernels/moe_route.c and
 * moe_rows.c define selection and dropping).
 *
 * One warp per token. Experts are selected one after the other by value, then by number. Only the
 * last selected expert is stored: all experts that are not after it in this order are selected, and
 * are written in the order of their numbers. Rows are numbered by stable sorts. */
#include "kernels/cuda/moe.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192 };
enum { ROUTE_WARPS = 2, MOST_GROUPS = 4096 };
enum { LOGITS, BIAS, SCORES, CHOICE, PROB };
enum { BWD_SCORES, BWD_CHOICE, DPROB, DLOGITS };
enum { TOKENS, EXPERTS, TOPK };

#define NOBODY 1e-20f /* added to a sum of logistic values, which may all be 0 */

/* Loops over [first, last) with the lanes of a warp. */
#define LANES(i, first, last)                                                                      \
  uint64_t i = (first) + threadIdx.x % 32;                                                         \
  i < (last);                                                                                      \
  i += 32

struct route {
  uint64_t tokens, experts, topk;
  struct weft_cuda_router router;
  struct array logits, bias, prob;
  float *scores;
  int32_t *choice;
};

/* An expert with its value; NO_EXPERT: none. */
struct candidate {
  float value;
  uint64_t expert;
};

#define NO_EXPERT (~(uint64_t) 0)

/* Whether a precedes b in the selection order. */
static __device__ __forceinline__ bool
precedes (const struct candidate &a, const struct candidate &b)
{
  return b.expert == NO_EXPERT ||
         (a.expert != NO_EXPERT &&
          (a.value > b.value || (a.value == b.value && a.expert < b.expert)));
}

/* Of the candidates of all lanes, the first in the selection order. */
static __device__ struct candidate
first_of_warp (struct candidate mine)
{
  for (unsigned mask = 16; mask; mask /= 2) {
    struct candidate other;
    other.value = __shfl_xor_sync (~0u, mine.value, mask);
    other.expert = __shfl_xor_sync (~0u, mine.expert, mask);
    mine = precedes (other, mine) ? other : mine;
  }
  return mine;
}

/* Value by which an expert is selected. NaN sorts last. */
static __device__ __forceinline__ struct candidate
candidate_at (const struct route &r, const float *scores, uint64_t expert)
{
  struct candidate c = { scores[expert], expert };

  c.value += r.bias.data ? get (r.bias, expert) : 0;
  c.value = isnan (c.value) ? -INFINITY : c.value;
  return c;
}

/* The first of experts [first, last) after `before` in the selection order. `open`: whether each
 * group is eligible; NULL: all groups are. */
static __device__ struct candidate
next_of (const struct route &r, const float *scores, uint64_t first, uint64_t last,
         const struct candidate &before, const uint8_t *open)
{
  uint64_t group = r.experts / r.router.groups;
  struct candidate best = { 0, NO_EXPERT };

  for (LANES (i, first, last)) {
    struct candidate c = candidate_at (r, scores, i);
    if ((!open || open[i / group]) && (before.expert == NO_EXPERT || precedes (before, c)) &&
        precedes (c, best))
      best = c;
  }
  return first_of_warp (best);
}

/* ----------------------------------------------------------------------------- groups */

/* Value of a group: the sum of the values of its best experts. */
static __device__ float
group_value (const struct route &r, const float *scores, uint64_t g)
{
  uint64_t size = r.experts / r.router.groups, n = r.topk / r.router.best;
  struct candidate at = { 0, NO_EXPERT };
  float sum = 0;

  for (uint64_t i = 0; i < (n ? n : 1); i++) {
    at = next_of (r, scores, g * size, (g + 1) * size, at, NULL);
    if (at.expert == NO_EXPERT)
      break;
    sum += at.value;
  }
  return sum;
}

/* Marks the best groups as eligible. */
static __device__ void
open_groups (const struct route &r, const float *scores, float *value, uint8_t *open)
{
  uint64_t n = r.router.groups;

  for (uint64_t g = 0; g < n; g++) {
    float of = group_value (r, scores, g);
    if (threadIdx.x % 32 == 0)
      value[g] = of;
  }
  __syncwarp ();
  for (LANES (g, 0, n)) {
    uint64_t before = 0;
    for (uint64_t other = 0; other < n; other++)
      before += value[other] > value[g] || (value[other] == value[g] && other < g);
    open[g] = before < r.router.best;
  }
  __syncwarp ();
}

/* ---------------------------------------------------------------------------- forward */

static __device__ void
logistics (float *x, uint64_t n)
{
  for (LANES (i, 0, n)) {
    float e = expf (x[i] < 0 ? x[i] : -x[i]);
    x[i] = x[i] < 0 ? e / (1 + e) : 1 / (1 + e);
  }
}

/* Writes the numbers of the selected experts in ascending order. An expert is selected if its group
 * is eligible and it is not after `last` in the selection order. */
static __device__ void
write_choice (const struct route &r, const float *scores, const struct candidate &last,
              const uint8_t *open, int32_t *choice)
{
  uint64_t group = r.experts / r.router.groups, n = 0;
  unsigned lane = threadIdx.x % 32;

  for (uint64_t first = 0; first < r.experts; first += 32) {
    uint64_t i = first + lane;
    bool chosen = i < r.experts && (!open || open[i / group]) &&
                  !precedes (last, candidate_at (r, scores, i));
    unsigned all = __ballot_sync (~0u, chosen);
    if (chosen)
      choice[n + __popc (all & ((1u << lane) - 1))] = (int32_t) i;
    n += __popc (all);
  }
  __syncwarp ();
}

/* Replaces x by its softmax over the elements whose indices are at[0] to at[n - 1]; all other
 * elements become 0. `at` NULL: softmax over x[0] to x[n - 1]. */
static __device__ void
softmax (float *x, uint64_t experts, const int32_t *at, uint64_t n)
{
  float most = -INFINITY, sum = 0;

  for (LANES (i, 0, n))
    most = fmaxf (most, x[at ? at[i] : i]);
  most = warp_most (most);
  for (LANES (i, 0, n))
    sum += expf (x[at ? at[i] : i] - most);
  sum = warp_sum (sum);
  __syncwarp (); /* all lanes have read */
  uint64_t next = 0; /* index in `at`, which is ascending */
  for (LANES (i, 0, experts)) {
    while (at && next < n && (uint64_t) at[next] < i)
      next++;
    bool is = !at || (next < n && (uint64_t) at[next] == i);
    x[i] = is ? expf (x[i] - most) / sum : 0;
  }
  __syncwarp ();
}

static __device__ void
write_weights (const struct route &r, const float *scores, uint64_t token)
{
  const int32_t *choice = r.choice + token * r.topk;
  bool shares = r.router.sigmoid && r.topk > 1;
  float sum = 0;

  for (LANES (i, 0, r.topk))
    sum += scores[choice[i]];
  sum = warp_sum (sum) + NOBODY;
  for (LANES (i, 0, r.topk)) {
    float weight = shares ? scores[choice[i]] / sum : scores[choice[i]];
    put (r.prob, token * r.topk + i, weight * r.router.scaling);
  }
}

/* Selects the experts of all tokens. Shared memory holds, per warp, the value of each group and
 * whether it is eligible. */
__global__ void
choose (struct route r)
{
  WEFT_DYNAMIC_SHARED (uint8_t, shared);
  uint64_t warp = threadIdx.x / 32, groups = r.router.groups;
  float *value = (float *) shared + warp * groups;
  uint8_t *room = shared + ROUTE_WARPS * groups * sizeof (float) + warp * groups;
  const uint8_t *open = groups == r.router.best ? NULL : room;
  uint64_t token = (uint64_t) blockIdx.x * ROUTE_WARPS + warp;

  for (; token < r.tokens; token += (uint64_t) gridDim.x * ROUTE_WARPS) {
    float *scores = r.scores + token * r.experts;
    struct candidate last = { 0, NO_EXPERT };
    for (LANES (i, 0, r.experts))
      scores[i] = get (r.logits, token * r.experts + i);
    __syncwarp ();
    if (r.router.sigmoid)
      logistics (scores, r.experts);
    else if (r.router.before)
      softmax (scores, r.experts, NULL, r.experts);
    __syncwarp ();
    if (open)
      open_groups (r, scores, value, room);
    for (uint64_t i = 0; i < r.topk; i++)
      last = next_of (r, scores, 0, r.experts, last, open);
    write_choice (r, scores, last, open, r.choice + token * r.topk);
    if (!r.router.sigmoid && !r.router.before)
      softmax (scores, r.experts, r.choice + token * r.topk, r.topk);
    write_weights (r, scores, token);
  }
}

const char *
weft_cuda_moe_route (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct route r = {};

  r.tokens = l->dim[TOKENS];
  r.experts = l->dim[EXPERTS];
  r.topk = l->dim[TOPK];
  r.router = l->model.router;
  r.logits = array_of (&o[LOGITS]);
  r.bias = array_of (&o[BIAS]);
  r.prob = array_of (&o[PROB]);
  r.scores = (float *) o[SCORES].data;
  r.choice = (int32_t *) o[CHOICE].data;
  if (r.router.groups > MOST_GROUPS)
    return "more groups of experts than a kernel has room for (4096)";
  WEFT_LAUNCH (choose, blocks_for (r.tokens, ROUTE_WARPS, MOST_BLOCKS), ROUTE_WARPS * 32,
               ROUTE_WARPS * r.router.groups * (sizeof (float) + 1), l->stream, r);
  return launched ();
}

/* --------------------------------------------------------------------------- backward */

struct route_gradient {
  uint64_t tokens, experts, topk;
  struct weft_cuda_router router;
  const float *scores;
  const int32_t *choice;
  struct array dprob, dlogits;
};

/* Gradient of the logits, with g the gradient of the weights, 0 for experts not selected. Softmax:
 * s (g - sum of s g). Normalised logistic values p = s / sum: (g - sum of p g) / sum, times s (1 -
 * s). */
__global__ void
route_bwd (struct route_gradient r)
{
  uint64_t token = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32;

  for (; token < r.tokens; token += (uint64_t) gridDim.x * THREADS / 32) {
    const float *s = r.scores + token * r.experts;
    const int32_t *choice = r.choice + token * r.topk;
    float all = 0, mean = 0;
    for (LANES (i, 0, r.topk)) {
      all += s[choice[i]];
      mean += s[choice[i]] * (get (r.dprob, token * r.topk + i) * r.router.scaling);
    }
    all = warp_sum (all) + NOBODY;
    mean = warp_sum (mean);
    for (LANES (i, 0, r.experts))
      put (r.dlogits, token * r.experts + i, r.router.sigmoid ? 0 : -(s[i] * mean));
    __syncwarp ();
    for (LANES (i, 0, r.topk)) {
      float g = get (r.dprob, token * r.topk + i) * r.router.scaling, of = s[choice[i]];
      float shared = r.topk > 1 ? (g - mean / all) / all : g;
      put (r.dlogits, token * r.experts + (uint64_t) choice[i],
           r.router.sigmoid ? shared * of * (1 - of) : of * (g - mean));
    }
  }
}

const char *
weft_cuda_moe_route_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct route_gradient r = { l->dim[TOKENS],
                              l->dim[EXPERTS],
                              l->dim[TOPK],
                              l->model.router,
                              (const float *) o[BWD_SCORES].data,
                              (const int32_t *) o[BWD_CHOICE].data,
                              array_of (&o[DPROB]),
                              array_of (&o[DLOGITS]) };

  WEFT_LAUNCH (route_bwd, blocks_for (r.tokens, THREADS / 32, MOST_BLOCKS), THREADS, 0, l->stream,
               r);
  return launched ();
}

/* --------------------------------------------------------------------- load balancing */

/* Adds the number of times that each expert was selected to its element of `to`. One thread block
 * per expert. Sums of integers are exact in any order. */
__global__ void
tally (const int32_t *choice, uint64_t n, float *to)
{
  __shared__ float room[32];
  float mine = 0;

  for (uint64_t i = threadIdx.x; i < n; i += THREADS)
    mine += choice[i] == (int32_t) blockIdx.x;
  mine = block_sum (mine, room);
  if (threadIdx.x == 0)
    to[blockIdx.x] += mine;
}

const char *
weft_cuda_moe_tally (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  WEFT_LAUNCH (tally, (unsigned) l->dim[EXPERTS], THREADS, 0, l->stream,
               (const int32_t *) o[0].data, o[0].n, (float *) o[1].data);
  return launched ();
}

/* Load balancing without a loss (DeepSeek-V3, section 2.1.2): adds `step` to the selection bias of
 * every expert that received fewer tokens than the mean, and subtracts it if more. One warp per
 * layer. Sums of integers are exact in any order. */
__global__ void
balance (const float *tally, float *bias, uint64_t experts, double step)
{
  uint64_t first = blockIdx.x * experts, last = first + experts;
  double sum = 0;

  for (LANES (i, first, last))
    sum += tally[i];
  for (unsigned mask = 16; mask; mask /= 2)
    sum += __shfl_xor_sync (~0u, sum, mask);
  for (LANES (i, first, last)) {
    double less = sum - (double) tally[i] * (double) experts;
    bias[i] += (float) (step * ((less > 0) - (less < 0)));
  }
}

const char *
weft_cuda_moe_balance (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  WEFT_LAUNCH (balance, (unsigned) l->dim[0], 32, 0, l->stream, (const float *) o[0].data,
               (float *) o[1].data, l->dim[1], l->model.router.step);
  return launched ();
}

/* ---------------------------------------------------------------------------- sorting */

enum { SORT_CHOICE, SORT_PROB, COUNTS, ROW };
enum { SORT_TOPK = 1, SORT_EXPERTS, CAPACITY, PADDED };

#define DROPPED INT32_MAX /* sorts after all experts */

/* Memory of a sort: keys, sorted keys, their order, the previous order, workspace. */
struct sorting {
  int32_t *keys, *sorted, *order, *before;
  void *room;
};

static uint64_t
align (uint64_t bytes)
{
  return (bytes + 255) / 256 * 256;
}

static uint64_t
sort_bytes (uint64_t choices)
{
  return 4 * align (choices * sizeof (int32_t)) + weft_cuda_sort_bytes (choices);
}

WEFT_CUDA_SCRATCH (moe_sort, sort_bytes (s->dim[0] * s->dim[1]))

static struct sorting
sorting_of (const struct weft_cuda_launch *l, uint64_t n)
{
  uint8_t *at = (uint8_t *) l->scratch;
  uint64_t each = align (n * sizeof (int32_t));
  struct sorting s = { (int32_t *) at, (int32_t *) (at + each), (int32_t *) (at + 2 * each),
                       (int32_t *) (at + 3 * each), at + 4 * each };

  return s;
}

/* Maps floats to integers in descending order; 0 and -0 are equal. */
__global__ void
key_by_weight (struct array prob, int32_t *keys, uint64_t n)
{
  for (WEFT_EACH (i, n)) {
    float weight = get (prob, i);
    int32_t bits;
    weight = weight == 0 ? 0 : weight;
    memcpy (&bits, &weight, sizeof bits);
    keys[i] = ~(bits < 0 ? bits ^ INT32_MAX : bits);
  }
}

__global__ void
key_by_choice (const int32_t *choice, const int32_t *order, int32_t *keys, uint64_t n)
{
  for (WEFT_EACH (i, n))
    keys[i] = choice[order[i]];
}

/* Number of sorted keys that are smaller than `key`, or equal to `key` with an old index below
 * `number`. */
static __device__ uint64_t
rank_of (const struct sorting &s, uint64_t n, int32_t key, uint64_t number)
{
  uint64_t low = 0, high = n;

  while (low < high) {
    uint64_t middle = (low + high) / 2;
    if (s.sorted[middle] < key ||
        (s.sorted[middle] == key && (uint64_t) s.order[middle] < number))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* After sorting by weight, then by expert: rows over capacity get the key DROPPED. */
__global__ void
key_by_capacity (struct sorting s, uint64_t n, uint64_t capacity)
{
  for (WEFT_EACH (i, n)) {
    bool drops = i - rank_of (s, n, s.sorted[i], 0) >= capacity;
    s.keys[s.before[s.order[i]]] = drops ? DROPPED : s.sorted[i];
  }
}

__global__ void
number_rows (struct sorting s, uint64_t n, uint64_t stride, int32_t *row)
{
  for (WEFT_EACH (i, n)) {
    int32_t expert = s.sorted[i];
    uint64_t at = stride ? (uint64_t) expert * stride + i - rank_of (s, n, expert, 0) : i;
    row[s.order[i]] = expert == DROPPED ? -1 : (int32_t) at;
  }
}

/* Counts the rows of each expert in each leaf. Leaf j contains the choices [j * each, (j + 1) *
 * each). */
__global__ void
count_rows (struct sorting s, uint64_t n, uint64_t leaves, uint64_t each, int64_t *counts,
            uint64_t experts)
{
  for (WEFT_EACH (i, experts * leaves)) {
    int32_t expert = (int32_t) (i / leaves);
    uint64_t first = i % leaves * each;
    counts[i] = (int64_t) (rank_of (s, n, expert, first + each) - rank_of (s, n, expert, first));
  }
}

static const char *
sort_by_capacity (const struct weft_cuda_launch *l, const struct sorting &s, uint64_t n)
{
  const struct weft_cuda_operand *o = l->operand;
  unsigned blocks = blocks_for (n, THREADS, MOST_BLOCKS);

  WEFT_LAUNCH (key_by_weight, blocks, THREADS, 0, l->stream, array_of (&o[SORT_PROB]), s.keys, n);
  const char *error = weft_cuda_sort (l, s.keys, n, s.sorted, s.before, s.room);
  if (error)
    return error;
  WEFT_LAUNCH (key_by_choice, blocks, THREADS, 0, l->stream, (const int32_t *) o[SORT_CHOICE].data,
               s.before, s.keys, n);
  error = weft_cuda_sort (l, s.keys, n, s.sorted, s.order, s.room);
  if (error)
    return error;
  WEFT_LAUNCH (key_by_capacity, blocks, THREADS, 0, l->stream, s, n, l->dim[CAPACITY]);
  return launched ();
}

const char *
weft_cuda_moe_sort (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t n = l->dim[TOKENS] * l->dim[SORT_TOPK], experts = l->dim[SORT_EXPERTS];
  uint64_t leaves = o[COUNTS].n / experts, each = l->dim[TOKENS] / leaves * l->dim[SORT_TOPK];
  uint64_t stride = l->dim[PADDED] ? l->dim[CAPACITY] : 0;
  struct sorting s = sorting_of (l, n);
  const char *error = l->dim[CAPACITY] ? sort_by_capacity (l, s, n) : NULL;
  const int32_t *keys = l->dim[CAPACITY] ? s.keys : (const int32_t *) o[SORT_CHOICE].data;

  error = error ? error : weft_cuda_sort (l, keys, n, s.sorted, s.order, s.room);
  if (error)
    return error;
  WEFT_LAUNCH (number_rows, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream, s, n,
               stride, (int32_t *) o[ROW].data);
  WEFT_LAUNCH (count_rows, blocks_for (experts * leaves, THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, s, n, leaves, each, (int64_t *) o[COUNTS].data, experts);
  return launched ();
}
