/* paper_exec.h - an executor that has only memory: every rank has its planned arenas, and ops do
 * nothing. For tests of code that reads and writes global tensors (train/state.h). Memory is NaN at
 * first, in every type. */
#pragma once
#include "tests/made/random_job.h"
#include "train/state.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka requires these headers before its own. */

#include <cmocka.h>

typedef struct paper_exec {
  weft_exec base;
  uint8_t *arena[][WEFT_N_POOL]; /* by row */
} paper_exec;

static inline uint8_t *
paper_at (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n)
{
  const weft_program *p = x->plan->role[x->actors->role[row]];

  g_assert (offset <= p->buf[buf].bytes && n <= p->buf[buf].bytes - offset);
  uint8_t *arena = ((paper_exec *) (void *) x)->arena[row][p->buf[weft_buf_owner (p, buf)].pool];
  return arena + weft_buf_address (p, buf) + offset;
}

static inline void
paper_read (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, void *out)
{
  memcpy (out, paper_at (x, row, buf, offset, n), n);
}

static inline void
paper_write (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, const void *in)
{
  memcpy (paper_at (x, row, buf, offset, n), in, n);
}

static inline void
paper_close (weft_exec *x)
{
  if (!x)
    return;
  for (uint32_t row = 0; row < x->actors->n; row++)
    for (int pool = 0; pool < WEFT_N_POOL; pool++)
      g_free (((paper_exec *) (void *) x)->arena[row][pool]);
  weft_actors_free (x->actors);
  g_free (x);
}

static const struct weft_exec_ops paper_ops = { .name = "paper",
                                                .doc = "memory alone",
                                                .flags = WEFT_EXEC_NUMBERS,
                                                .close = paper_close,
                                                .read = paper_read,
                                                .write = paper_write };

static inline weft_exec *
paper_open (const weft_plan *plan)
{
  weft_actors *actors = weft_actors_new (&plan->fabric, &plan->mesh, FALSE);
  paper_exec *x = g_malloc0 (sizeof *x + actors->n * sizeof x->arena[0]);

  x->base = (weft_exec){ .ops = &paper_ops, .plan = plan, .actors = actors };
  for (uint32_t row = 0; row < actors->n; row++)
    for (int pool = 0; pool < WEFT_N_POOL; pool++) {
      uint64_t bytes = plan->memory[actors->role[row]].planned[pool];
      /* one byte more than planned, so that an empty pool has an address too */
      x->arena[row][pool] = g_malloc (bytes + 1);
      memset (x->arena[row][pool], 0xff, bytes);
    }
  return &x->base;
}

/* ----------------------------------------------------------------- jobs and states */

/* Strategies for tests that move tensors from one strategy to another: 1 to 8 GPUs, 1 to 4 stages,
 * replicated or sharded state, one bucket or many, early or late gathers. */
static const char *const paper_layouts[] = {
  "gpus=1",
  "gpus=1 use_distributed_optimizer=true",
  "gpus=2",
  "gpus=2 pipeline_model_parallel_size=2",
  "gpus=4 use_distributed_optimizer=true",
  "gpus=4 pipeline_model_parallel_size=4",
  "gpus=8",
  "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true "
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=3000",
  "gpus=8 pipeline_model_parallel_size=4 use_distributed_optimizer=true "
  "pad_buckets_for_high_nccl_busbw=true",
};

struct paper_job {
  weft_plan *plan;
  weft_exec *x;
  weft_state *state;
};

/* Opens a job on the paper executor. The text of the job is `model` and `layout` together, for
 * instance "model=gpt2-nano precision=bf16" and "gpus=8". */
static inline struct paper_job
paper_job_open (const char *model, const char *layout)
{
  struct paper_job j = { weft_test_plan ("topology=cpu %s %s", model, layout), NULL, NULL };

  j.x = paper_open (j.plan);
  j.state = weft_state_new (j.x);
  return j;
}

static inline void
paper_job_close (struct paper_job *j)
{
  weft_state_free (j->state);
  paper_close (j->x);
  weft_plan_free (j->plan);
}

static inline uint64_t
paper_elements (const weft_state *state, uint32_t tensor)
{
  return weft_state_at (state, tensor)->rows * weft_state_at (state, tensor)->columns;
}

/* Returns all elements of a global tensor. The caller frees the array. */
static inline float *
paper_tensor (weft_state *state, uint32_t tensor, enum weft_state_kind kind)
{
  uint64_t n = paper_elements (state, tensor);
  float *value = g_new (float, n);

  weft_state_read (state, tensor, kind, 0, n, value);
  return value;
}

/* Writes a number into every element of every tensor, for all kinds (weight, first moment, ...).
 * The number depends on the name of the tensor, the kind, the index of the element and `salt`, but
 * not on the strategy of the job. */
static inline void
paper_fill (weft_state *state, uint32_t salt)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++)
    for (uint32_t kind = 0; kind < WEFT_N_STATE_KIND; kind++) {
      uint64_t n = paper_elements (state, i);
      g_autofree float *value = g_new (float, n);
      uint32_t number = g_str_hash (weft_state_at (state, i)->name) + 97 * kind + 31337 * salt;
      for (uint64_t e = 0; e < n; e++)
        value[e] = (float) ((int32_t) ((number + (uint32_t) e) * 2654435761u)) * 0x1p-31f;
      weft_state_write (state, i, kind, 0, n, value);
    }
}

/* Asserts that every tensor of a kind has the same bits in both states. */
static inline void
paper_assert_equal (weft_state *found, weft_state *wanted, enum weft_state_kind kind)
{
  assert_int_equal (weft_state_count (found), weft_state_count (wanted));
  for (uint32_t i = 0; i < weft_state_count (found); i++) {
    assert_string_equal (weft_state_at (found, i)->name, weft_state_at (wanted, i)->name);
    assert_int_equal (weft_state_at (found, i)->rows, weft_state_at (wanted, i)->rows);
    assert_int_equal (weft_state_at (found, i)->columns, weft_state_at (wanted, i)->columns);
    g_autofree float *a = paper_tensor (found, i, kind), *b = paper_tensor (wanted, i, kind);
    if (memcmp (a, b, paper_elements (found, i) * sizeof *a))
      fail_msg ("%s of %s differs", weft_state_kind_words[kind], weft_state_at (found, i)->name);
  }
}
