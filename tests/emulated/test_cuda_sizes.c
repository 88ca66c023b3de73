/* CUDA kernels at the sizes of real models, which are too large to compute in a test: a device must
 * accept the launches, and the last elements of arrays with billions of elements must be addressed
 * correctly. */
#include "core/job/stack.h"
#include "core/plan/gpu_kernels.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/table.h"
#include "kernels/float.h"
#include "tests/made/cuda_case.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/runner/runner.h"
#include <sys/mman.h>

enum { MOST = 1 << 22 /* no array is filled beyond this many elements */ };

static union weft_model model;
static struct weft_control control;

static int
open_model (void **state)
{
  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  model.num_attention_heads = 32;
  model.num_query_groups = 8;
  model.kv_channels = 128;
  model.seq_length = model.max_position_embeddings = 4096;
  return 0;
}

static struct weft_kernel
call_of (enum weft_op_kind kind, const uint64_t dim[8])
{
  struct weft_kernel k = { .kind = kind, .model = &model, .control = &control };

  memcpy (k.shape.dim, dim, sizeof k.shape.dim);
  k.shape.dtype = WEFT_BF16;
  return k;
}

static enum weft_dtype
dtype_of (enum weft_op_kind kind, const char *name)
{
  static const char *const whole = "ids targets choice row";
  static const char *const narrow =
      "x y a b dy dx qkv o do dqkv logits gate_up dgate_up table weight w "
      "pre residual sum dresidual u du add";

  if (kind == WEFT_OP_MOE_FP8_MATMUL && kernel_case_is_one_of (name, "x w"))
    return WEFT_FP8;
  return kernel_case_is_one_of (name, whole)    ? WEFT_INT32
         : g_str_equal (name, "counts")         ? WEFT_INT64
         : g_str_equal (name, "mask")           ? WEFT_UINT8
         : kernel_case_is_one_of (name, narrow) ? WEFT_BF16
                                                : WEFT_FP32;
}

/* ------------------------------------------------------------------------------ launches */

/* A kernel call as in a training step of a real model on one rank. `of`: name of the model. */
static const struct real {
  const char *of;
  enum weft_op_kind kind;
  uint64_t dim[8];
  /* number of elements of operands whose size does not follow from the shape; 0 for all other
   * operands */
  uint64_t n[4];
} reals[] = {
  { "GPT-2, 64 x 1024 tokens", WEFT_OP_EMBED, { 65536, 768 } },
  { "GPT-2", WEFT_OP_EMBED_BWD, { 65536, 768 } },
  { "GPT-2", WEFT_OP_NORM_BWD, { 65536, 768 } },
  { "GPT-2", WEFT_OP_ATTENTION, { 64, 1024, 12, 12, 64 } },
  { "GPT-2", WEFT_OP_ATTENTION_BWD, { 64, 1024, 12, 12, 64 } },
  { "GPT-2", WEFT_OP_SCORES, { 64, 1024, 12, 12, 64 } },
  { "GPT-2", WEFT_OP_SCORES_BWD, { 64, 1024, 12, 12, 64 } },
  { "GPT-2", WEFT_OP_SOFTMAX, { 64, 1024, 12, 12, 64 } },
  { "GPT-2", WEFT_OP_GELU, { 65536, 3072 } },
  { "GPT-2", WEFT_OP_XENT, { 65536, 50304, 0, 50257 } },
  { "GPT-2", WEFT_OP_XENT_GRAD, { 65536, 50304, 0, 50257, 0, 65536 } },
  { "Llama 2 7B, 16 x 4096 tokens", WEFT_OP_NORM, { 65536, 4096 } },
  { "Llama 2 7B", WEFT_OP_ADD_NORM, { 65536, 4096 } },
  { "Llama 2 7B", WEFT_OP_NORM_BWD, { 65536, 4096 } },
  { "Llama 2 7B", WEFT_OP_ROPE, { 65536 * 40, 128 } },
  { "Llama 2 7B", WEFT_OP_ATTENTION, { 16, 4096, 32, 32, 128 } },
  { "Llama 2 7B", WEFT_OP_ATTENTION_BWD, { 16, 4096, 32, 32, 128 } },
  { "Llama 2 7B", WEFT_OP_SWIGLU, { 65536, 11008 } },
  { "Llama 2 7B", WEFT_OP_SWIGLU_BWD, { 65536, 11008 } },
  { "Qwen 2.5 1.5B, 32 x 1024 tokens", WEFT_OP_NORM_BWD, { 32768, 1536 } },
  { "Qwen 2.5 1.5B", WEFT_OP_ADD_NORM, { 32768, 1536 } },
  { "Qwen 2.5 1.5B", WEFT_OP_XENT_BWD, { 32768, 151936, 32768, 151936 } },
  { "Qwen 2.5 1.5B", WEFT_OP_CAST, { 1543714304, 0, 1 } },
  { "Qwen 2.5 1.5B", WEFT_OP_GRAD_ADD, { 27525120 } },
  { "Qwen 2.5 1.5B", WEFT_OP_ADD, { 32768, 1536 } },
  { "Qwen 2.5 1.5B", WEFT_OP_BIAS_ADD, { 32768, 2048 } },
  { "Llama 3 405B", WEFT_OP_NORM_BWD, { 131072, 16384 } },
  { "Llama 3 405B", WEFT_OP_ATTENTION_BWD, { 1, 131072, 128, 8, 128 } },
  { "Qwen 3 235B", WEFT_OP_XENT_GRAD, { 65536, 151936, 0, 0, 0, 65536 } },
  { "Qwen 3 235B", WEFT_OP_EMBED_BWD, { 65536, 4096 } },
  { "Qwen 3 235B", WEFT_OP_ADAM, { 622329856 } },
  { "Qwen 3 235B", WEFT_OP_GRAD_NORM, { 622329856 } },
  { "DeepSeek-V3", WEFT_OP_ATTENTION, { 4, 4096, 128, 128, 192, 0, 128 } },
  { "DeepSeek-V3", WEFT_OP_ATTENTION_BWD, { 4, 4096, 128, 128, 192, 0, 128 } },
  { "DeepSeek-V3", WEFT_OP_MOE_ROUTE, { 65536, 256, 8 } },
  { "DeepSeek-V3", WEFT_OP_MOE_SORT, { 65536, 8, 256 }, { 0, 0, 256 } },
  { "DeepSeek-V3", WEFT_OP_MOE_MATMUL, { 524288, 4096, 7168, 256 }, { 524288ull * 7168, 0, 256 } },
  { "DeepSeek-V3",
    WEFT_OP_MOE_MATMUL_DGRAD,
    { 524288, 4096, 7168, 256 },
    { 524288ull * 4096, 0, 256 } },
  { "DeepSeek-V3",
    WEFT_OP_MOE_MATMUL_WGRAD,
    { 524288, 4096, 7168, 256 },
    { 524288ull * 4096, 0, 256 } },
  { "DeepSeek-V3", WEFT_OP_QUANTISE_BLOCKS, { 65536, 18432, 128 } },
  { "DeepSeek-V3", WEFT_OP_TRANSPOSE, { 65536, 18432 } },
  /* sizes above 65535, the largest grid in y and z */
  { "4 x 2^20 tokens", WEFT_OP_EMBED_BWD, { 4 << 20, 1024 } },
  { "4 x 2^20 tokens", WEFT_OP_QUANTISE_BLOCKS, { 4 << 20, 1024, 32 } },
  { "16 x 2^20 tokens", WEFT_OP_QUANTISE_BLOCKS, { 16 << 20, 256, 128, 1 } },
  { "4 x 2^20 tokens", WEFT_OP_TRANSPOSE, { 4 << 20, 1024 } },
  { "1024 x 128 tokens, 96 heads", WEFT_OP_ATTENTION, { 1024, 128, 96, 96, 64 } },
  { "1024 x 128 tokens, 96 heads", WEFT_OP_ATTENTION_BWD, { 1024, 128, 96, 96, 64 } },
  { "1024 x 128 tokens, 96 heads", WEFT_OP_SCORES, { 1024, 128, 96, 96, 64 } },
  { "1024 x 128 tokens, 96 heads", WEFT_OP_SCORES_BWD, { 1024, 128, 96, 96, 64 } },
  { "1024 x 128 tokens, 96 heads", WEFT_OP_SOFTMAX, { 1024, 128, 96, 96, 64 } },
  { "10 x 2^20 rows",
    WEFT_OP_MOE_MATMUL,
    { 10 << 20, 1024, 2048, 128 },
    { (10ull << 20) * 2048, 0, 128 } },
  { "10 x 2^20 rows",
    WEFT_OP_MOE_MATMUL_DGRAD,
    { 10 << 20, 1024, 2048, 128 },
    { (10ull << 20) * 1024, 0, 128 } },
  { "10 x 2^20 rows",
    WEFT_OP_MOE_MATMUL_WGRAD,
    { 10 << 20, 1024, 2048, 128 },
    { (10ull << 20) * 1024, 0, 128 } },
  { "4 x 2^20 tokens", WEFT_OP_SWIGLU, { 4 << 20, 2048 } },
  { "4 x 2^20 tokens", WEFT_OP_NORM_BWD, { 4 << 20, 1024 } },
};

/* Launches the kernel of a call, and runs none of its blocks: the addresses of the operands have no
 * memory. They are `askew` bytes after a multiple of 256. */
static void
launch_real (const struct real *r, int warpgroups, uint64_t askew)
{
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  struct weft_kernel k = call_of (r->kind, r->dim);
  uint32_t n = kernel_case_arguments (r->kind, argument);

  for (uint32_t o = 0; o < n; o++) {
    uint64_t extent = o < 4 && r->n[o] ? r->n[o] : weft_kernels[r->kind].extent (&k, o);
    k.operand[o] = (struct weft_operand){ (void *) (((uint64_t) (o + 1) << 44) + askew), extent,
                                          (uint8_t) dtype_of (r->kind, argument[o].name), 0 };
  }
  struct weft_cuda_launch l = weft_cuda_launch_of (&k);
  l.warpgroups = warpgroups;
  l.scratch = (void *) ((uint64_t) 16 << 44);
  l.scratch_bytes = weft_cuda_scratch (r->kind, &k.shape);
  const char *error = weft_cuda_launchers[r->kind](&l);
  if (error)
    fail_msg ("%s, %s: %s", r->of, weft_op_info[r->kind].word, error);
}

/* The emulator ends the program at a launch that a device would refuse. */
static void
a_device_takes_launches_of_real_models (void **state)
{
  (void) state;
  emulated_run_blocks (EMULATED_NONE);
  for (unsigned i = 0; i < G_N_ELEMENTS (reals); i++) {
    launch_real (&reals[i], FALSE, 0);
    launch_real (&reals[i], TRUE, 0);
    launch_real (&reals[i], TRUE, 4);
  }
  emulated_run_blocks (EMULATED_ALL);
}

/* ------------------------------------------------------------ what kernels of stack weft take */

/* Whether the call launches a kernel with this name, on a device with wgmma. */
static gboolean
launches (const struct real *r, const char *kernel)
{
  uint64_t before = emulated_launches (kernel);

  launch_real (r, TRUE, 0);
  return emulated_launches (kernel) > before;
}

static union weft_stack
our_stack (void)
{
  union weft_stack stack;

  assert_true (weft_stack_load ("weft", &stack, NULL));
  return stack;
}

/* stacks/weft.ini states for the cost model which head widths run on tensor cores. The statement
 * must agree with the kernels. */
static void
the_stack_says_which_heads_tiles_take (void **state)
{
  static const uint64_t values[] = { 0, 8, 20, 64, 72, 128, 136 };
  union weft_stack stack = our_stack ();
  uint64_t n = 0;

  (void) state;
  emulated_run_blocks (EMULATED_NONE);
  for (uint64_t width = 4; width <= 260; width += 4)
    for (unsigned i = 0; i < G_N_ELEMENTS (values); i++) {
      const struct real r = { "heads", WEFT_OP_ATTENTION, { 1, 64, 2, 2, width, 0, values[i] } };
      gboolean taken =
          weft_stack_takes_heads (&stack, 2, width, values[i] ? values[i] : width);
      if (launches (&r, "attend") == taken)
        fail_msg ("heads of %d with values of %d", (int) width, (int) values[i]);
      n += taken;
    }
  assert_in_range (n, 50, 200);
  emulated_run_blocks (EMULATED_ALL);
}

/* stacks/weft.ini states for the cost model which fp8 grouped GEMMs a wgmma kernel computes. The
 * statement must agree with the kernels. */
static void
the_stack_says_which_codes_warpgroups_take (void **state)
{
  static const uint64_t widths[] = { 128, 136, 144, 160, 164, 256 }, blocks[] = { 0, 32, 128 };
  union weft_stack stack = our_stack ();

  (void) state;
  emulated_run_blocks (EMULATED_NONE);
  for (unsigned i = 0; i < 36 * G_N_ELEMENTS (blocks); i++) {
    const struct weft_stack_codes c = { widths[i % 6], widths[i / 6 % 6], blocks[i / 36] };
    const struct real r = { "codes", WEFT_OP_MOE_FP8_MATMUL,
                            { 256, c.n, c.k, 2, [7] = c.block }, { 256 * c.k, 2, 0, 2 } };
    if (launches (&r, "warpgroup_codes") !=
        weft_stack_takes_codes (&stack, stack.expert_fp8_capability, &c))
      fail_msg ("codes of (%d, %d), blocks of %d", (int) c.n, (int) c.k, (int) c.block);
  }
  emulated_run_blocks (EMULATED_ALL);
}

static void
assert_grid (const struct real *r, const char *kernel, uint64_t blocks, uint32_t threads)
{
  struct emulated_grid grid = emulated_grid_of (kernel);

  if (grid.blocks != blocks || grid.threads != threads)
    fail_msg ("%s, %s: %s has %" G_GUINT64_FORMAT " x %u, core/gpu_kernels.def says %"
              G_GUINT64_FORMAT " x %u",
              r->of, weft_op_info[r->kind].word, kernel, grid.blocks, grid.threads, blocks,
              threads);
}

/* Kernels of attention, and threads of their blocks for heads of 64 and 128. */
static uint32_t
check_attention_grids (const struct real *r, const struct weft_shape *shape)
{
  static const struct {
    const char *name;
    gboolean producer;
    uint32_t threads[2];
  } kernels[] = { { "warpgroup_forward", FALSE, { 256, 256 } },
                  { "warpgroup_queries", FALSE, { 256, 256 } },
                  { "warpgroup_keys", FALSE, { 256, 256 } },
                  { "producer_forward", TRUE, { 512, 384 } },
                  { "producer_backward", TRUE, { 384, 384 } } };
  uint32_t n = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (kernels); i++) {
    uint64_t before = emulated_launches (kernels[i].name);
    launch_real (r, kernels[i].producer ? WEFT_WARPGROUPS_PRODUCER : WEFT_WARPGROUPS, 0);
    if (emulated_launches (kernels[i].name) > before) {
      assert_grid (r, kernels[i].name, weft_attention_kernel_blocks (kernels[i].name, shape),
                   kernels[i].threads[shape->dim[4] > 64]);
      n++;
    }
  }
  return n;
}

/* core/gpu_kernels.def states for the cost model how many blocks and threads a kernel has. The
 * statement must agree with the launches. */
static void
launches_have_the_grids_of_the_cost_model (void **state)
{
  uint32_t memory = 0, attention = 0;

  (void) state;
  emulated_run_blocks (EMULATED_NONE);
  for (unsigned i = 0; i < G_N_ELEMENTS (reals); i++) {
    const struct real *r = &reals[i];
    const struct weft_memory_kernel *k = weft_memory_kernel (r->kind);
    struct weft_shape shape = call_of (r->kind, r->dim).shape;
    attention += check_attention_grids (r, &shape);
    if (!k || !k->kernel || !launches (r, k->kernel))
      continue;
    struct weft_kernel_grid grid = weft_memory_grid (k, &shape);
    assert_grid (r, k->kernel, grid.blocks, grid.threads);
    memory++;
  }
  assert_in_range (memory, 10, G_N_ELEMENTS (reals));
  assert_in_range (attention, 8, 5 * G_N_ELEMENTS (reals));
  emulated_run_blocks (EMULATED_ALL);
}

/* Devices with less shared memory per block than Hopper (163 KB on compute capability 8.0; 99 KB on
 * 8.6, 8.9 and 12.0) must accept the launches of real models too. */
static void
a_device_with_less_shared_memory_takes_them_too (void **state)
{
  static const unsigned kilobytes[] = { 163, 99 };

  (void) state;
  emulated_run_blocks (EMULATED_NONE);
  for (unsigned d = 0; d < G_N_ELEMENTS (kilobytes); d++) {
    emulated_set_most_shared (kilobytes[d] << 10);
    for (unsigned i = 0; i < G_N_ELEMENTS (reals); i++)
      launch_real (&reals[i], FALSE, 0);
  }
  emulated_set_most_shared (227 << 10);
  emulated_run_blocks (EMULATED_ALL);
}

/* ------------------------------------------------------------- behind four billion elements */

/* Calls whose arrays have more than 2^31 elements. Only the last block runs. A small call on copies
 * of the last rows must write the same bits, otherwise an index has overflowed. `out`: the operand
 * that is compared. */
static const struct large {
  enum weft_op_kind kind;
  uint64_t dim[8];
  uint64_t few; /* the small call runs on this many last rows */
  uint32_t out;
  int32_t word; /* every element of an int32 operand has this value */
} larges[] = {
  { WEFT_OP_XENT_GRAD, { 98304, 50304, 0, 0, 0, 1 }, 1, 0, 50303 },
  /* row length for which the kernel uses one warp per row */
  { WEFT_OP_NORM, { 5 << 20, 1024 }, 8, 3, 0 },
  /* row length for which the kernel uses one thread block per row */
  { WEFT_OP_NORM, { 1 << 20, 5120 }, 1, 3, 0 },
  { WEFT_OP_SWIGLU, { 131070, 36864 }, 1, 1, 0 },
  { WEFT_OP_ADD, { 3 << 20, 2048 }, 1, 2, 0 },
  { WEFT_OP_TAKE_KV, { 3 << 20, 8, 8, 128 }, 1, 1, 0 },
  { WEFT_OP_EMBED, { 3 << 19, 4096 }, 1, 3, 99 },
  { WEFT_OP_ATTENTION, { 8191, 1024, 8, 8, 128 }, 1, 1, 0 },
};

/* Reserves addresses. Only pages that are written use memory, so `bytes` may exceed the memory of
 * the machine. */
static void *
reserve (uint64_t bytes)
{
  void *at = mmap (NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

  if (at == MAP_FAILED)
    skip ();
  return at;
}

/* Fills the last n elements of an operand, at most MOST of them. */
static void
fill (GRand *rand, const struct weft_operand *o, uint64_t n, int32_t word)
{
  for (uint64_t i = o->n - MIN (n, MOST); i < o->n; i++) {
    float x = (float) g_rand_double_range (rand, 0.1, 1);
    if (o->dtype == WEFT_INT32)
      ((int32_t *) o->data)[i] = word;
    else if (o->dtype <= WEFT_FP16)
      weft_store (o->data, (enum weft_dtype) o->dtype, i, 1, &x);
  }
}

/* Returns the address of the last elements of `all`, as many as `few` has. */
static uint8_t *
end_of (const struct weft_operand *all, const struct weft_operand *few)
{
  return (uint8_t *) all->data + cuda_case_bytes (all) - cuda_case_bytes (few);
}

/* Makes operand `argument` of two calls of the same kernel: `all` for the call on all rows, `few`
 * for the call on only the last rows. The two calls share an operand whose size does not depend on
 * the number of rows. */
static void
make_operands (GRand *rand, const struct large *large, const struct kernel_argument *argument,
               struct weft_operand *all, struct weft_operand *few)
{
  *all = (struct weft_operand){ NULL, all->n, (uint8_t) dtype_of (large->kind, argument->name), 0 };
  if (large->kind == WEFT_OP_EMBED && g_str_equal (argument->name, "table"))
    all->n = few->n = 100 * large->dim[1];
  all->data = reserve (cuda_case_bytes (all));
  if (argument->flags & KERNEL_READS)
    fill (rand, all, few->n, large->word);
  *few = (struct weft_operand){ all->data, few->n, all->dtype, 0 };
  if (few->n < all->n)
    few->data = g_memdup2 (end_of (all, few), cuda_case_bytes (few));
}

static void
run_last (const struct weft_kernel *k, gboolean warpgroups)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);

  l.warpgroups = warpgroups;
  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = l.scratch_bytes ? reserve (l.scratch_bytes) : NULL;
  assert_null (weft_cuda_launchers[k->kind](&l));
  if (l.scratch)
    munmap (l.scratch, l.scratch_bytes);
}

static void
make_calls (GRand *rand, const struct large *large, struct weft_kernel *all,
            struct weft_kernel *few)
{
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  uint32_t n = kernel_case_arguments (large->kind, argument);

  *all = *few = call_of (large->kind, large->dim);
  few->shape.dim[0] = large->few;
  for (uint32_t o = 0; o < n; o++)
    if (!(argument[o].flags & KERNEL_MAY_BE_ABSENT)) {
      all->operand[o].n = weft_kernels[large->kind].extent (all, o);
      few->operand[o].n = weft_kernels[large->kind].extent (few, o);
      make_operands (rand, large, &argument[o], &all->operand[o], &few->operand[o]);
    }
}

static void
free_calls (struct weft_kernel *all, struct weft_kernel *few)
{
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    if (few->operand[o].data != all->operand[o].data)
      g_free (few->operand[o].data);
    if (all->operand[o].data)
      munmap (all->operand[o].data, cuda_case_bytes (&all->operand[o]));
  }
}

/* Checks that the call on all rows and the call on the last rows have both written their output,
 * and that the bits of the last rows are equal. */
static void
compare (const char *word, const struct weft_operand *all, const struct weft_operand *few)
{
  const uint8_t *end = end_of (all, few);
  uint64_t written = 0;

  if (all->n <= G_MAXUINT32 || few->n >= all->n)
    fail_msg ("%s: %" G_GUINT64_FORMAT " elements, of few rows %" G_GUINT64_FORMAT, word, all->n,
              few->n);
  if (memcmp (end, few->data, cuda_case_bytes (few)) != 0)
    fail_msg ("%s: rows behind %" G_GUINT64_FORMAT " elements are others than rows alone", word,
              all->n - few->n);
  for (uint64_t i = 0; i < cuda_case_bytes (few); i++)
    written += end[i] != 0;
  if (written < 100)
    fail_msg ("%s: nothing was written", word);
}

static void
check_large (GRand *rand, const struct large *large, gboolean warpgroups)
{
  struct weft_kernel all, few;

  make_calls (rand, large, &all, &few);
  run_last (&all, warpgroups);
  run_last (&few, warpgroups);
  compare (weft_op_info[large->kind].word, &all.operand[large->out], &few.operand[large->out]);
  free_calls (&all, &few);
}

static void
the_last_of_billions_of_elements_are_what_they_are_alone (void **state)
{
  GRand *rand = g_rand_new_with_seed (17);

  (void) state;
  emulated_run_blocks (EMULATED_LAST);
  for (unsigned i = 0; i < G_N_ELEMENTS (larges); i++)
    check_large (rand, &larges[i], FALSE);
  check_large (rand, &larges[G_N_ELEMENTS (larges) - 1], TRUE);
  emulated_run_blocks (EMULATED_ALL);
  g_rand_free (rand);
}

/* fp8 values of a matrix with 32 columns: row-major (y), transposed by the quantisation (yt), and y
 * transposed by a kernel of its own (turned). */
struct squares {
  uint8_t *y, *yt, *turned, *scale, *scale_t;
};

static struct squares
run_squares (uint16_t *x, uint64_t rows)
{
  const uint64_t n = rows * 32;
  struct squares s = { reserve (n), reserve (n), reserve (n), reserve (n / 32), reserve (n / 32) };
  struct weft_kernel q = call_of (WEFT_OP_QUANTISE_BLOCKS, (const uint64_t[8]){ rows, 32, 32 }),
                     turn = call_of (WEFT_OP_TRANSPOSE, (const uint64_t[8]){ rows, 32 });

  q.operand[0] = (struct weft_operand){ x, n, WEFT_BF16, FALSE };
  q.operand[1] = turn.operand[0] = (struct weft_operand){ s.y, n, WEFT_FP8, FALSE };
  q.operand[2] = (struct weft_operand){ s.scale, n / 32, WEFT_E8M0, FALSE };
  q.operand[3] = (struct weft_operand){ s.yt, n, WEFT_FP8, FALSE };
  q.operand[4] = (struct weft_operand){ s.scale_t, n / 32, WEFT_E8M0, FALSE };
  turn.operand[1] = (struct weft_operand){ s.turned, n, WEFT_FP8, FALSE };
  run_last (&q, FALSE);
  run_last (&turn, FALSE);
  return s;
}

static void
free_squares (struct squares *s, uint64_t rows)
{
  uint8_t *const codes[] = { s->y, s->yt, s->turned };

  for (unsigned i = 0; i < G_N_ELEMENTS (codes); i++)
    munmap (codes[i], rows * 32);
  munmap (s->scale, rows);
  munmap (s->scale_t, rows);
}

/* Quantises 98304 rows of 32 x 32 squares, more than the 65535 blocks that a grid may have in y,
 * and checks the last squares. */
static void
lines_of_squares_may_be_more_than_a_grid_has_in_y (void **state)
{
  const uint64_t rows = 3 << 20, before = rows - 32;
  uint16_t *x = reserve (rows * 32 * 2);
  GRand *rand = g_rand_new_with_seed (18);

  (void) state;
  for (uint64_t i = before * 32; i < rows * 32; i++) {
    float value = (float) g_rand_double_range (rand, -2, 2);
    weft_store (x, WEFT_BF16, i, 1, &value);
  }
  emulated_run_blocks (EMULATED_LAST);
  struct squares all = run_squares (x, rows), few = run_squares (x + before * 32, 32);
  emulated_run_blocks (EMULATED_ALL);
  assert_memory_equal (all.y + before * 32, few.y, 32 * 32);
  assert_memory_equal (all.scale + before, few.scale, 32);
  for (uint64_t c = 0; c < 32; c++) {
    assert_memory_equal (all.yt + c * rows + before, few.yt + c * 32, 32);
    assert_memory_equal (all.turned + c * rows + before, few.turned + c * 32, 32);
    assert_int_equal (all.scale_t[c * (rows / 32) + before / 32], few.scale_t[c]);
    for (uint64_t r = 0; r < 32; r++)
      assert_int_equal (few.turned[c * 32 + r], few.y[r * 32 + c]);
    assert_true (few.scale[c] > 0 && few.scale_t[c] > 0);
  }
  free_squares (&all, rows);
  free_squares (&few, 32);
  munmap (x, rows * 32 * 2);
  g_rand_free (rand);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_device_takes_launches_of_real_models),
  cmocka_unit_test (the_stack_says_which_heads_tiles_take),
  cmocka_unit_test (the_stack_says_which_codes_warpgroups_take),
  cmocka_unit_test (launches_have_the_grids_of_the_cost_model),
  cmocka_unit_test (a_device_with_less_shared_memory_takes_them_too),
  cmocka_unit_test (the_last_of_billions_of_elements_are_what_they_are_alone),
  cmocka_unit_test (lines_of_squares_may_be_more_than_a_grid_has_in_y),
};

WEFT_TESTS (tests, .set_up = open_model)
