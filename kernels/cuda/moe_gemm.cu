/* Grouped GEMM: linear layers of experts, one product per expert over its rows. Row counts are
 * known only on the device: a first kernel finds the first row and tile of each expert; the grid of
 * the second has room for the largest number of tiles, and surplus blocks return at once.
 *
 * One block computes a weight gradient over all rows of its expert, so its order is the same in
 * every run. */
#include "kernels/cuda/moe_gemm.cuh"
#include "kernels/cuda/products.cuh"

enum { X, W, COUNTS, Y }; /* dgrad: dy w counts dx; wgrad: dy x counts dw */
enum { M, N, K, EXPERTS, STRIDE };

/* ----------------------------------------------------------------- first row of each expert */

struct expert_rows {
  const int64_t *counts;
  uint64_t per, stride, each; /* per: number of counts per expert; stride: if not 0, every expert
                               * has `each` rows */

  __device__ uint64_t operator() (uint64_t e) const
  {
    return stride ? each : count_of (counts + e * per, per);
  }
};

struct expert_tiles {
  const uint64_t *begin;
  uint64_t size;

  __device__ uint64_t operator() (uint64_t e) const
  {
    return (begin[e + 1] - begin[e] + size - 1) / size;
  }
};

/* Finds the first row and the first tile of each expert; rows beyond the end of the buffer are left
 * out. */
__global__ void
find_experts (struct expert_rows rows, uint64_t experts, uint64_t room, uint64_t size,
              uint64_t *begin, uint64_t *tile)
{
  struct expert_tiles tiles = { begin, size };

  scan_by_warp (rows, experts, begin);
  __syncwarp ();
  for (uint64_t e = threadIdx.x; e <= experts; e += 32)
    begin[e] = begin[e] < room ? begin[e] : room;
  __syncwarp ();
  scan_by_warp (tiles, experts, tile);
}

/* First row and first tile of each expert. */
uint64_t
weft_cuda_experts_bytes (uint64_t experts)
{
  return 2 * (experts + 1) * sizeof (uint64_t);
}

void
weft_cuda_find_experts (const struct weft_cuda_launch *l, const struct weft_cuda_operand *counts,
                        struct grouped *g, const struct weft_cuda_rows *all)
{
  uint64_t *begin = (uint64_t *) l->scratch, *tile = begin + g->experts + 1;
  struct expert_rows rows = { (const int64_t *) counts->data, counts->n / g->experts,
                              counts->data ? all->stride : 1, all->n / g->experts };

  g->begin = begin;
  g->tile = tile;
  WEFT_LAUNCH (find_experts, 1, 32, 0, l->stream, rows, g->experts, all->room, all->tile, begin,
               tile);
}

/* ------------------------------------------------------------------------------- tiles */

/* Computes one tile of a product. A line of a factor (struct sheet) is a stored row: forward of x
 * and of the weights, dgrad of dy and of the weights, wgrad of dy and of x. A factor is "turned" if
 * the inner dimension of the product runs across its lines: the weights in dgrad, both in wgrad. */
template <enum way WAY, class T>
__global__ void
__launch_bounds__ (TILE_THREADS) tiles (struct grouped g)
{
  const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  WEFT_DYNAMIC_SHARED (T, shared);
  struct share s;
  float sum[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};

  if (!share_of<WAY, TILE, TILE> (g, &s))
    return;
  uint64_t a_wide = A_TURNED ? s.rows : s.terms, b_wide = B_TURNED ? s.columns : s.terms;
  sheet<T> a = { (const T *) g.a.data + s.a, A_TURNED ? s.terms : s.rows, a_wide, a_wide },
           b = { (const T *) g.b.data + s.b, B_TURNED ? s.terms : s.columns, b_wide, b_wide };
  struct tile_of_product tile = { s.row, s.column, 0, s.terms };
  leave_shared<T> leave = { g, s };
  tile_product<A_TURNED, B_TURNED> (shared, a, b, tile, sum);
  each_two (sum, leave);
}

template <enum way WAY>
__global__ void
__launch_bounds__ (TILE_THREADS) plain (struct grouped g)
{
  float sum[EACH][EACH] = {};
  struct share s;

  if (!share_of<WAY, PLAIN_TILE, PLAIN_TILE> (g, &s))
    return;
  struct plain_factor a = { g.a, s.a, s.rows, WAY == WGRAD ? 1 : s.terms,
                            WAY == WGRAD ? s.rows : 1 },
                      b = { g.b, s.b, s.columns, WAY == FORWARD ? s.terms : 1,
                            WAY == FORWARD ? 1 : s.columns };
  struct tile_of_product tile = { s.row, s.column, 0, s.terms };
  leave_shared<float> leave = { g, s };
  plain_product (a, b, tile, sum);
  each_one (sum, leave);
}

/* ------------------------------------------------------------------------------ launches */

/* Whether tiles() supports this call: 16-bit factors of one type, whose rows in memory begin at
 * multiples of 16 bytes. */
static bool
tiles_take (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uintptr_t at = (uintptr_t) o[0].data | (uintptr_t) o[1].data | (uintptr_t) o[3].data;

  return o[0].dtype != WEFT_FP32 && o[1].dtype == o[0].dtype && o[3].dtype <= WEFT_FP16 &&
         (o[3].dtype == WEFT_FP32 || o[3].dtype == o[0].dtype) && at % 16 == 0 &&
         l->dim[N] % 8 == 0 && l->dim[K] % 8 == 0;
}

template <enum way WAY, class T>
static const char *
run_tiles (const struct weft_cuda_launch *l, const struct grouped &g, uint64_t room)
{
  const size_t bytes = tile_bytes<T> ();
  const char *error = allow (tiles<WAY, T>, bytes);

  if (error)
    return error;
  WEFT_LAUNCH ((tiles<WAY, T>), (grid_of<WAY, TILE, TILE> (g, room)), TILE_THREADS, bytes,
               l->stream, g);
  return launched ();
}

template <enum way WAY>
static const char *
run (const struct weft_cuda_launch *l, struct grouped g)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t wide = WAY == FORWARD ? l->dim[K] : l->dim[N];
  const bool tensor_cores = tiles_take (l);
  uint64_t room = o[0].n / wide, size = tensor_cores ? (unsigned) TILE : (unsigned) PLAIN_TILE;
  const struct weft_cuda_rows all = { l->dim[M], room, l->dim[STRIDE], size };

  g.a = array_of (&o[0]);
  g.b = array_of (&o[1]);
  g.y = array_of (&o[Y]);
  g.experts = l->dim[EXPERTS];
  weft_cuda_find_experts (l, &o[COUNTS], &g, &all);
  if (!tensor_cores)
    WEFT_LAUNCH (plain<WAY>, (grid_of<WAY, PLAIN_TILE, PLAIN_TILE> (g, room)), TILE_THREADS, 0,
                 l->stream, g);
  else if (l->warpgroups)
    return weft_cuda_moe_warpgroups (l, &g, WAY, room);
  else
    return o[0].dtype == WEFT_BF16 ? run_tiles<WAY, bf16> (l, g, room)
                                   : run_tiles<WAY, fp16> (l, g, room);
  return launched ();
}

WEFT_CUDA_SCRATCH (moe_matmul, weft_cuda_experts_bytes (s->dim[EXPERTS]))
WEFT_CUDA_SCRATCH (moe_matmul_dgrad, weft_cuda_experts_bytes (s->dim[EXPERTS]))
WEFT_CUDA_SCRATCH (moe_matmul_wgrad, weft_cuda_experts_bytes (s->dim[EXPERTS]))

const char *
weft_cuda_moe_matmul (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[N];
  g.terms = l->dim[K];
  return run<FORWARD> (l, g);
}

const char *
weft_cuda_moe_matmul_dgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[K];
  g.terms = l->dim[N];
  return run<DGRAD> (l, g);
}

const char *
weft_cuda_moe_matmul_wgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.rows = l->dim[N];
  g.columns = l->dim[K];
  g.adds = l->operand[Y].accumulate;
  return run<WGRAD> (l, g);
}
