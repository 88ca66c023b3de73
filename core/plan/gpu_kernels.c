#include "core/plan/gpu_kernels.h"
#include <math.h>

/* Hopper (CUDA programming guide, "Compute Capabilities", and table of arithmetic throughput): fp32
 * lanes of an SM, special functions per clock, threads and registers of an SM, registers of a warp
 * are allocated in units of 8 per thread. */
enum {
  LANES = 128,
  SPECIAL_LANES = 16,
  SM_THREADS = 2048,
  SM_REGISTERS = 65536,
  SM_BLOCKS = 32,
  REGISTER_UNIT = 8,
  WARP = 32,
  HOPPER = 90,
  PACK = 16,         /* bytes */
  MOST_IN_Y = 65535, /* blocks of a grid in dimension y, by which rows are counted */
  NORM_SMS = 132,    /* MULTIPROCESSORS of norm_rows.cuh */
  SETTLE = 100,      /* cycles at the end of a stage of attention (gpu_kernels.h) */
};

const char *const weft_limit_words[] = { "bandwidth", "loads in flight", "instructions",
                                         "special functions", NULL };

static const struct {
  enum weft_op_kind kind;
  struct weft_memory_kernel k;
} memory_kernels[] = {
#define MEMORY_KERNEL(kind, ...) { kind, { __VA_ARGS__ } },
#include "core/gpu_kernels.def"
};

static const struct attention_row {
  enum weft_op_kind kind;
  struct weft_attention_kernel k;
} attention_kernels[] = {
#define ATTENTION_KERNEL(kind, ...) { kind, { __VA_ARGS__ } },
#include "core/gpu_kernels.def"
};

const struct weft_memory_kernel *
weft_memory_kernel (enum weft_op_kind kind)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (memory_kernels); i++)
    if (memory_kernels[i].kind == kind)
      return &memory_kernels[i].k;
  return NULL;
}

static double
clock_of (const struct weft_cluster *c)
{
  return c->f.gpu_cuda_core_spec / (2.0 * LANES * (double) c->f.gpu_sms);
}

static uint32_t
on_sm (uint32_t threads, uint32_t registers, uint32_t most)
{
  uint32_t each = (registers + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
  uint32_t n = MIN (SM_BLOCKS, SM_THREADS / threads);

  if (each)
    n = MIN (n, SM_REGISTERS / (each * threads));
  return MAX (1, most ? MIN (n, most) : n);
}

/* The teams of norm_rows.cuh. */
static void
team_grid (const struct weft_memory_kernel *k, const struct weft_shape *s,
           struct weft_kernel_grid *grid)
{
  uint64_t packs = s->dim[1] * weft_dtype_bytes (s->dtype) / PACK;
  gboolean in_warp = packs <= WARP * k->team[2];
  uint64_t threads =
      in_warp ? WARP * k->team[0] : MIN (k->team[1], (packs + WARP - 1) / WARP * WARP);
  uint64_t per = in_warp ? MAX (1, (packs + WARP - 1) / WARP) : 1 + (packs > threads);

  grid->threads = (uint32_t) threads;
  grid->elements = (double) s->dim[1] * (in_warp ? k->team[0] : 1);
  grid->on_sm = on_sm (grid->threads, k->team_registers[in_warp ? per - 1 : 3 + MIN (per, 2)], 0);
  if (!in_warp && k->block_waits > 0)
    grid->waits = k->block_waits;
  if (k->resident[0])
    grid->blocks = NORM_SMS * (in_warp ? k->resident[0] : k->resident[MIN (per, 2)] / threads);
}

static double
elements_of (const struct weft_memory_kernel *k, const struct weft_shape *s)
{
  return (double) s->dim[0] * (k->flat || !s->dim[1] ? 1 : (double) s->dim[1]);
}

struct weft_kernel_grid
weft_memory_grid (const struct weft_memory_kernel *k, const struct weft_shape *s)
{
  struct weft_kernel_grid grid = { .blocks = k->most_blocks,
                                   .threads = k->threads,
                                   .waits = k->waits };

  if (k->team[0])
    team_grid (k, s, &grid);
  else {
    gboolean wide = k->wide && s->dim[1] * weft_dtype_bytes (s->dtype) > k->wide;
    grid.threads = k->threads * (1 + wide);
    grid.elements = (double) grid.threads * k->each;
    grid.on_sm = on_sm (grid.threads, k->registers, wide ? 1 : k->most_on_sm);
  }
  double blocks = fmax (1, ceil (elements_of (k, s) / grid.elements));
  if (k->rows)
    blocks = ceil ((double) s->dim[0] / k->rows);
  if (k->by_row) {
    double in_row = ceil ((double) s->dim[1] / grid.elements);
    blocks = in_row * (double) MIN (s->dim[0], MOST_IN_Y);
    grid.elements = (double) s->dim[1] / in_row;
  }
  grid.blocks = (uint64_t) (grid.blocks ? fmin (blocks, (double) grid.blocks) : blocks);
  return grid;
}

double
weft_memory_kernel_seconds (const struct weft_cluster *c, enum weft_op_kind kind,
                            const struct weft_shape *s, double sms, enum weft_kernel_limit *limit)
{
  const struct weft_memory_kernel *k = weft_memory_kernel (kind);
  double seconds[WEFT_N_LIMIT] = { 0 };

  *limit = WEFT_LIMIT_BANDWIDTH;
  if (!k || c->f.gpu_memory_latency <= 0 || c->f.gpu_cuda_core_spec <= 0)
    return 0;
  struct weft_kernel_grid grid = weft_memory_grid (k, s);
  double n = elements_of (k, s), at_once = fmin ((double) grid.blocks, grid.on_sm * sms);

  seconds[WEFT_LIMIT_FLIGHT] =
      ceil (n / (grid.elements * at_once)) * grid.waits * c->f.gpu_memory_latency;
  seconds[WEFT_LIMIT_INSTRUCTIONS] = n * k->instructions / (sms * LANES * clock_of (c));
  seconds[WEFT_LIMIT_SPECIALS] = n * k->specials / (sms * SPECIAL_LANES * clock_of (c));
  for (enum weft_kernel_limit i = WEFT_LIMIT_FLIGHT; i < WEFT_N_LIMIT; i++)
    if (seconds[i] > seconds[*limit])
      *limit = i;
  return seconds[*limit];
}

/* add_matrix_of_chunks: blocks of 32 x 8 threads, each with one pack of 16 bytes in flight; the
 * grid covers the columns, and the rows in chunks of at least 64, at most 128 chunks. */
double
weft_bias_sum_seconds (const struct weft_cluster *c, const struct weft_shape *s, double bandwidth)
{
  enum { COLUMN_LANES = 32, ROW_LANES = 8, LEAST_ROWS = 64, MOST_CHUNKS = 128, REGISTERS = 35 };
  double rows = (double) s->dim[0], bytes = rows * (double) s->dim[1] * weft_dtype_bytes (s->dtype);
  double chunks = fmin (MOST_CHUNKS, ceil (rows / LEAST_ROWS));
  double across = ceil ((double) s->dim[1] * weft_dtype_bytes (s->dtype) / (COLUMN_LANES * PACK));
  double at_once = fmin (across * chunks,
                         on_sm (COLUMN_LANES * ROW_LANES, REGISTERS, 0) * (double) c->f.gpu_sms);
  double round = at_once * COLUMN_LANES * ROW_LANES * PACK;

  return fmax (bytes / bandwidth, ceil (bytes / round) * c->f.gpu_memory_latency);
}

/* --------------------------------------------------------------------- attention */

gboolean
weft_attention_kernel_takes (const struct weft_cluster *c, enum weft_op_kind kind,
                             const struct weft_shape *s)
{
  enum { WIDEST = 128, LEAST = 33 };
  uint64_t width = s->dim[4], value = s->dim[6] ? s->dim[6] : width;

  return (kind == WEFT_OP_ATTENTION || kind == WEFT_OP_ATTENTION_BWD) &&
         c->f.gpu_capability == HOPPER && c->f.gpu_memory_latency > 0 &&
         c->f.gpu_cuda_core_spec > 0 && weft_dtype_bytes (s->dtype) == 2 && width >= LEAST &&
         width <= WIDEST && value <= width;
}

/* Seconds of a kernel's block for one inner tile. `width` is that of the padded tile. */
static double
tile_seconds (const struct weft_cluster *c, const struct weft_attention_kernel *k, double width,
              double rate)
{
  double scores = (double) k->outer * k->inner, product = 2 * scores * width, all = 0;
  double each = product * (double) c->f.gpu_sms / rate, work = 0, products = 0;
  double clock = clock_of (c) * c->f.gpu_bf16_sustained;

  for (unsigned i = 0; i < G_N_ELEMENTS (k->stage); i++) {
    double on_scores =
        scores / clock * (k->stage[i].instructions / LANES + k->stage[i].specials / SPECIAL_LANES);
    all += fmax (k->stage[i].products * each, on_scores);
    all += k->stage[i].products > 0 ? SETTLE / clock : 0;
    products += k->stage[i].products * each;
    work += on_scores;
  }
  return k->apart || k->on_sm > 1 ? fmax (products, work) : all;
}

/* The inner tiles of outer tile i that the causal mask and the window leave. */
static double
inner_tiles (const struct weft_attention_kernel *k, const struct weft_shape *s, uint64_t i)
{
  uint64_t sequence = s->dim[1], window = s->dim[5] ? s->dim[5] : sequence;
  uint64_t first = i * k->outer, end = MIN (sequence, first + k->outer);
  uint64_t from = k->by_key ? first : first + 1 > window ? first + 1 - window : 0;
  uint64_t to = k->by_key ? MIN (sequence, end - 1 + window) : end;

  return (double) ((to + k->inner - 1) / k->inner - from / k->inner);
}

static uint64_t
outer_tiles (const struct weft_attention_kernel *k, const struct weft_shape *s)
{
  return (s->dim[1] + k->outer - 1) / k->outer;
}

/* The width to which the kernels pad heads. */
static uint32_t
padded_width (const struct weft_shape *s)
{
  return s->dim[4] <= 64 ? 64 : 128;
}

static gboolean
is_for (const struct weft_attention_kernel *k, const struct weft_shape *s)
{
  return !k->width || k->width == padded_width (s);
}

uint64_t
weft_attention_kernel_blocks (const char *kernel, const struct weft_shape *s)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (attention_kernels); i++) {
    const struct weft_attention_kernel *k = &attention_kernels[i].k;
    if (g_str_equal (k->kernel, kernel) && is_for (k, s))
      return outer_tiles (k, s) * s->dim[0] * (k->by_key ? s->dim[3] : s->dim[2]);
  }
  return 0;
}

static double
pass_seconds (const struct weft_cluster *c, const struct weft_attention_kernel *k,
              const struct weft_shape *s, const struct weft_attention_run *run)
{
  double width = padded_width (s), tile = tile_seconds (c, k, width, run->rate);
  double heads = (double) (k->by_key ? s->dim[3] : s->dim[2]), most = 0, sum = 0;
  double inner_heads = k->by_key ? (double) s->dim[2] / (double) s->dim[3] : 1;
  double last = 2.0 * k->outer * k->inner * width * (double) c->f.gpu_sms / run->rate;
  double gradients = (double) s->dim[0] * (double) s->dim[1] * (double) s->dim[2] * width;
  uint64_t n = outer_tiles (k, s);

  for (uint64_t i = 0; i < n; i++) {
    double block = inner_heads * inner_tiles (k, s, i) * tile + last + c->f.gpu_memory_latency;
    sum += block;
    most = fmax (most, block);
  }
  sum *= (double) s->dim[0] * heads / run->sms;
  return fmax (most, sum + most / 2) + gradients * k->after / c->f.gpu_memory_bandwidth;
}

double
weft_attention_kernel_seconds (const struct weft_cluster *c, enum weft_op_kind kind,
                               const struct weft_shape *s, const struct weft_attention_run *run)
{
  double seconds = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (attention_kernels); i++) {
    const struct weft_attention_kernel *k = &attention_kernels[i].k;
    if (attention_kernels[i].kind == kind && k->producer == run->producer && is_for (k, s))
      seconds += pass_seconds (c, k, s, run);
  }
  return seconds;
}
