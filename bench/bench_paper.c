/* What `weft sim` predicts for Weft's own kernels on one H200, part by part and kernel by kernel:
 * the page bench/results/paper.md.
 *
 *   ./weft bench paper > bench/results/paper.md
 *
 * Beside the parts stand those of an independent estimate (bench/paper.csv). */
#include "core/base/error.h"
#include "core/job/flags.h"
#include "core/plan/plan.h"
#include "core/report/report.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct model {
  const char *name, *words;
} models[] = {
  { "gpt2", "model=gpt2 micro_batch_size=64 global_batch_size=64 seq_length=1024 "
            "make_vocab_size_divisible_by=128" },
  { "qwen2.5-1.5b", "model=qwen2.5-1.5b micro_batch_size=32 global_batch_size=32 seq_length=1024" },
  { "llama2-7b", "model=llama2-7b micro_batch_size=16 global_batch_size=16 seq_length=4096" },
};
#define COMMON                                                                                     \
  "topology=hgx-h200 stack=weft gpus=1 precision=bf16 reduction_order=fast "                       \
  "gradient_accumulation_fusion=true"
#define N_MODEL G_N_ELEMENTS (models)

enum part { PRODUCTS, FORWARD, BACKWARD, NORMS, POINTWISE, LOSS, OPTIMIZER, REST, STEP, N_PART };
static const char *const part_words[N_PART] = {
  "products", "attention forward", "attention backward",     "norms", "activations and rope",
  "loss",     "optimizer",         "embedding and the rest", "step",
};

static enum part
part_of (enum weft_op_kind kind)
{
  switch (weft_op_kernel (kind)) {
  case WEFT_KERNEL_MATMUL:
    return PRODUCTS;
  case WEFT_KERNEL_ATTENTION:
    return kind == WEFT_OP_ATTENTION ? FORWARD : BACKWARD;
  case WEFT_KERNEL_NORM:
    return NORMS;
  case WEFT_KERNEL_SOFTMAX:
    return LOSS;
  case WEFT_KERNEL_OPTIMIZER:
    return OPTIMIZER;
  default:
    break;
  }
  switch (kind) {
  case WEFT_OP_XENT:
  case WEFT_OP_XENT_BWD:
  case WEFT_OP_XENT_GRAD:
    return LOSS;
  case WEFT_OP_ADAM:
  case WEFT_OP_CAST:
  case WEFT_OP_SCALE:
  case WEFT_OP_CLIP:
    return OPTIMIZER;
  default:
    return weft_op_info[kind].pointwise ? POINTWISE : REST;
  }
}

/* One model: its plan, and the seconds of its parts and of its kinds of ops. */
struct result {
  weft_plan *plan;
  double part[N_PART], kind[WEFT_N_OP], mfu;
  uint32_t ops[WEFT_N_OP];
};

static gboolean
predict (const struct model *model, struct result *to, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job;

  if (!weft_flags_words (COMMON, settings, error) ||
      !weft_flags_words (model->words, settings, error) ||
      !weft_job_build (settings, &job, error) || !(to->plan = weft_plan_new (&job, error)))
    return FALSE;
  const weft_program *p = to->plan->role[0];
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_op_kind kind = p->op[op].kind;
    double seconds = to->plan->seconds[0][op];
    if (weft_op_info[kind].class != WEFT_CLASS_COMPUTE)
      continue;
    to->part[part_of (kind)] += seconds;
    to->part[STEP] += seconds;
    to->kind[kind] += seconds;
    to->ops[kind]++;
  }
  double tokens = (double) job.train.global_batch_size * (double) job.model.seq_length;
  to->mfu = tokens * weft_job_flops_per_token (&to->plan->job) / to->part[STEP] /
            weft_report_printed_peak (&to->plan->job);
  return TRUE;
}

static const char *
source_of (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *shape)
{
  if (weft_op_kernel (kind) == WEFT_KERNEL_MATMUL)
    return "cuBLASLt: tiles, waves, depth";
  if (weft_attention_kernel_takes (cost->cluster, kind, shape))
    return "tiles and stages";
  return weft_memory_kernel (kind) ? "grid, loads in flight, instructions" : "bytes (estimate)";
}

/* Prints a line for each kind of op of a model whose kernels take a thousandth of the step, from
 * the first op of the kind. */
static void
print_kernels (const struct model *model, const struct result *r)
{
  const weft_program *p = r->plan->role[0];
  struct weft_cost cost = weft_plan_cost (r->plan);
  gboolean seen[WEFT_N_OP] = { FALSE };

  printf ("\n## %s\n\n| op | ops | ms | one op reaches | limited by | its price follows from |\n"
          "|---|---|---|---|---|---|\n",
          model->name);
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_op_kind kind = p->op[op].kind;
    const struct weft_shape *shape = weft_op_shape (p, op);
    if (weft_op_info[kind].class != WEFT_CLASS_COMPUTE || seen[kind] ||
        r->kind[kind] < r->part[STEP] / 1000)
      continue;
    seen[kind] = TRUE;
    struct weft_cost_parts c = weft_cost_split (&cost, kind, shape);
    gboolean works = c.work > c.memory;
    printf ("| `%s` | %u | %.2f | %.*f %s | %s | %s |\n", weft_op_info[kind].word, r->ops[kind],
            1e3 * r->kind[kind], works ? 0 : 2, (works ? c.flops / c.work : c.bandwidth) / 1e12,
            works ? "TFLOP/s" : "TB/s", works ? "tensor cores" : weft_limit_words[c.limit],
            source_of (&cost, kind, shape));
  }
}

static void
print_parts (const struct result *r, GPtrArray *rows)
{
  printf ("| part, ms |");
  for (unsigned m = 0; m < N_MODEL; m++)
    printf (" %s | by hand |", models[m].name);
  printf ("\n|---|---|---|---|---|---|---|\n");
  for (unsigned part = 0; part < N_PART; part++) {
    char *const *row = rows->pdata[part];
    printf ("| %s |", part_words[part]);
    for (unsigned m = 0; m < N_MODEL; m++)
      printf (" %.*f | %s |", r[m].part[part] < 0.1 ? 1 : 0, 1e3 * r[m].part[part], row[m + 1]);
    printf ("\n");
  }
  printf ("| MFU, %% |");
  for (unsigned m = 0; m < N_MODEL; m++)
    printf (" %.1f | %.0f |", 100 * r[m].mfu,
            100 * r[m].mfu * r[m].part[STEP] /
                (1e-3 * g_ascii_strtod (((char *const *) rows->pdata[STEP])[m + 1], NULL)));
  printf ("\n");
}

/* Seconds of all ops of a kind of attention, by kernels with or without a producer warp. */
static double
attention_seconds (const struct result *r, enum weft_op_kind kind, gboolean producer)
{
  const weft_program *p = r->plan->role[0];
  struct weft_cost cost = weft_plan_cost (r->plan);
  double seconds = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind) {
      const struct weft_shape *shape = weft_op_shape (p, op);
      struct weft_attention_run run = { weft_cost_split (&cost, kind, shape).rate,
                                        (double) cost.cluster->f.gpu_sms, producer };
      seconds += weft_attention_kernel_seconds (cost.cluster, kind, shape, &run);
    }
  return seconds;
}

static void
print_attention (const struct result *r)
{
  fputs ("\n## Attention\n\n"
         "The kernels that `attention_backend` = flash runs, which are priced above, and those\n"
         "with a producer warp, which `auto` measures beside them and cuDNN's; ms of a step,\n"
         "without the kernels before and after. Nothing is known of cuDNN's here.\n\n"
         "| model | op | flash | producer warp |\n|---|---|---|---|\n",
         stdout);
  for (unsigned m = 0; m < N_MODEL; m++)
    for (unsigned back = 0; back < 2; back++) {
      enum weft_op_kind kind = back ? WEFT_OP_ATTENTION_BWD : WEFT_OP_ATTENTION;
      printf ("| %s | `%s` | %.1f | %.1f |\n", models[m].name, weft_op_info[kind].word,
              1e3 * attention_seconds (&r[m], kind, FALSE),
              1e3 * attention_seconds (&r[m], kind, TRUE));
    }
}

/* What a product with swiglu in its epilogue would save, and the products that it would replace, in
 * seconds. Forward writes gate_up, which backward needs, and does not read it again: 4 of the 6
 * bytes of swiglu per element. Backward neither writes nor reads the gradient of its result: 4 of
 * 10 bytes. */
struct epilogue {
  double bias, saved, products;
};

static struct epilogue
epilogues_of (const struct result *r)
{
  const weft_program *p = r->plan->role[0];
  struct weft_cost cost = weft_plan_cost (r->plan);
  struct epilogue e = { .saved = r->kind[WEFT_OP_SWIGLU] * 4 / 6 +
                                 r->kind[WEFT_OP_SWIGLU_BWD] * 4 / 10 };
  uint64_t width = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    e.bias += weft_cost_bias (&cost, p, op);
    if (p->op[op].kind == WEFT_OP_SWIGLU)
      width = weft_op_shape (p, op)->dim[1];
  }
  for (uint32_t op = 0; op < p->n_op && width; op++) {
    const struct weft_shape *s = weft_op_shape (p, op);
    gboolean forward = p->op[op].kind == WEFT_OP_MATMUL && s->dim[1] == 2 * width,
             backward = p->op[op].kind == WEFT_OP_MATMUL_DGRAD && s->dim[2] == width;
    e.products += forward || backward ? r->plan->seconds[0][op] : 0;
  }
  return e;
}

static void
print_epilogues (const struct result *r)
{
  fputs ("\n## What epilogues could save\n\n"
         "Bias gradients are sums of a second pass over the output gradients, 2 bytes an element\n"
         "(`kernels/cuda/columns.cuh`); CUBLASLT_EPILOGUE_BGRADB would sum them in the product of\n"
         "the weight gradient, may exclude that its depth is split, and stores a sum but\n"
         "never adds to one. It is not used yet. cuBLASLt 13.0 has no epilogue with a gate: its\n"
         "list (`cublasLtEpilogue_t`) has ReLU, GELU, their gradients, biases and bias gradients.\n"
         "swiglu in an epilogue therefore needs a matmul of our own, for the first projection and\n"
         "for the gradient behind the second. It would save the bytes in the column `swiglu`: the\n"
         "first matmul still writes gate and up, which backward reads. The last column is by how\n"
         "much our matmul may be slower than cuBLASLt's before this saving is gone. Whether one\n"
         "would be within it cannot be known without a GPU, so there is none.\n\n"
         "| model | bias gradients, ms | swiglu, ms | of a step | its matmuls, ms | may be "
         "slower by |\n|---|---|---|---|---|---|\n",
         stdout);
  for (unsigned m = 0; m < N_MODEL; m++) {
    struct epilogue e = epilogues_of (&r[m]);
    printf ("| %s | %.1f | %.1f | %.1f %% | %.0f | ", models[m].name, 1e3 * e.bias, 1e3 * e.saved,
            100 * (e.bias + e.saved) / r[m].part[STEP], 1e3 * e.products);
    if (e.products > 0)
      printf ("%.1f %% |\n", 100 * e.saved / e.products);
    else
      printf ("- |\n");
  }
}

/* The lines of bench/paper.csv, which must be the parts in their order. */
static GPtrArray *
read_estimate (GError **error)
{
  g_autoptr (GPtrArray) rows = g_ptr_array_new_with_free_func ((GDestroyNotify) g_strfreev);
  g_autofree char *text = NULL;

  if (!g_file_get_contents (WEFT_SOURCE_DIR "/bench/paper.csv", &text, NULL, error))
    return NULL;
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  for (unsigned i = 0; line[i]; i++)
    if (line[i][0] && line[i][0] != '#')
      g_ptr_array_add (rows, g_strsplit (line[i], ",", -1));
  for (unsigned part = 0; part < N_PART; part++) {
    char **row = part < rows->len ? rows->pdata[part] : NULL;
    if (!row || g_strv_length (row) != 1 + N_MODEL || !g_str_equal (row[0], part_words[part])) {
      weft_bad_input (error, "bench/paper.csv: row %u must be \"%s\" and %u numbers", part,
                      part_words[part], (unsigned) N_MODEL);
      return NULL;
    }
  }
  return g_steal_pointer (&rows);
}

static const char head[] =
    "# A step on one H200, on paper\n\n"
    "Made by `./weft bench paper > bench/results/paper.md`. **Nothing here was measured**: it is\n"
    "what `weft sim` predicts for Weft's own kernels, and beside it what a reader estimated by\n"
    "hand (`bench/paper.csv`, +-10 %) for the kernels of an earlier day: since then norms, loss,\n"
    "optimizer, attention and the choice of matmul algorithms have changed. The prices follow\n"
    "from `core/gpu_kernels.def`, which holds tiles, grids, registers and instruction counts of\n"
    "the kernels, and from `core/plan/cost.h`. Estimates in them: the latency of busy memory\n"
    "(`memory_latency` of the topology), the share of copy bandwidth that a kernel with enough\n"
    "loads reaches (`memory_share`), the constant part of a tile of cuBLASLt (`matmul_k_half`),\n"
    "the cycles at the end of a stage of attention, and the gap between kernels (`kernel_gap`).\n"
    "The sustained rate of tensor cores is fitted to published runs of other software. None was\n"
    "set to agree with the other estimate. The model of attention knows no bank conflicts and no\n"
    "waits for copies within a row of tiles, so its backward pass is optimistic. GPT-2 has a\n"
    "vocabulary padded from 50,257 to 50,304: rows of logits begin at multiples of 16 bytes.\n\n";

int
main (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) rows = read_estimate (&error);
  struct result r[N_MODEL] = { 0 };
  gboolean good = rows != NULL;

  for (unsigned m = 0; good && m < N_MODEL; m++)
    good = predict (&models[m], &r[m], &error);
  if (good) {
    fputs (head, stdout);
    print_parts (r, rows);
    print_attention (r);
    print_epilogues (r);
    for (unsigned m = 0; m < N_MODEL; m++)
      print_kernels (&models[m], &r[m]);
  } else
    fprintf (stderr, "bench_paper: %s\n", error->message);
  for (unsigned m = 0; m < N_MODEL; m++)
    g_clear_pointer (&r[m].plan, weft_plan_free);
  return good ? 0 : weft_error_exit_status (error);
}
