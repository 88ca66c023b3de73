/* CPU benchmark: matrix products and attention on one core, next to OpenBLAS if it is installed.
 * Shapes are cubes and the linear layers of GPT-2 124M with 1024 tokens (Radford et al. 2019). The
 * fastest run counts: other programs on the machine can only add time. */
#include "core/base/error.h"
#include "core/base/json.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include <dlfcn.h>
#include <json-glib/json-glib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef void (*kernel_run) (const struct weft_kernel *k, uint32_t part, uint32_t parts);
typedef void (*openblas_sgemm) (int order, int turn_a, int turn_b, int m, int n, int k, float alpha,
                                const float *a, int a_row, const float *b, int b_row, float beta,
                                float *c, int c_row);

struct bench {
  int runs;
  /* minimum duration of a measurement in seconds; `runs` runs may take longer */
  double least;
  openblas_sgemm openblas; /* NULL if OpenBLAS is not installed */
  JsonBuilder *json;       /* NULL: results are printed as a table, not as JSON */
};

/* --------------------------------------------------------------------------- measuring */

/* CPU time of this thread: time that other programs use is not counted. */
static double
now (void)
{
  struct timespec t;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

typedef void (*work) (const void *what);

/* Rate of the fastest run in 1e9 units of work per second; `amount`: units of work per call. */
static double
measure (const struct bench *b, work run, const void *what, double amount)
{
  double best = G_MAXDOUBLE, start = now ();

  for (int i = 0; i < b->runs || now () - start < b->least; i++) {
    /* calls between two readings of the clock: enough to make the reading's cost negligible */
    unsigned times = 1 + (unsigned) (2e7 / amount);
    double from = now ();
    for (unsigned t = 0; t < times; t++)
      run (what);
    best = MIN (best, (now () - from) / times);
  }
  return 1e-9 * amount / best;
}

struct call {
  struct weft_kernel k;
  kernel_run cpu;
  openblas_sgemm openblas;
};

static void
run_cpu (const void *what)
{
  const struct call *c = what;

  c->cpu (&c->k, 0, 1);
}

/* Computes y = x w^T through the CBLAS interface of OpenBLAS. The constants are CblasRowMajor,
 * CblasNoTrans, CblasTrans. */
static void
run_openblas (const void *what)
{
  const struct call *c = what;
  int m = (int) c->k.shape.dim[0], n = (int) c->k.shape.dim[1], k = (int) c->k.shape.dim[2];

  c->openblas (101, 111, 112, m, n, k, 1, c->k.operand[0].data, k, c->k.operand[1].data, k, 0,
               c->k.operand[3].data, n);
}

/* Random numbers in [-1, 1): products of zeros could be faster. */
static void *
random_array (uint64_t n, enum weft_dtype dtype)
{
  uint32_t seed = 1, halves = dtype == WEFT_BF16;
  void *array = g_malloc (n * weft_dtype_bytes (dtype));

  for (uint64_t i = 0; i < n; i++) {
    seed = seed * 1664525 + 1013904223;
    float f = (float) (int32_t) seed * 0x1p-31f;
    uint32_t bits;
    memcpy (&bits, &f, sizeof bits);
    if (halves)
      ((uint16_t *) array)[i] = (uint16_t) (bits >> 16);
    else
      ((float *) array)[i] = f;
  }
  return array;
}

static void
set_operands (struct weft_kernel *k, uint64_t (*extent) (const struct weft_kernel *, uint32_t),
              uint32_t n, enum weft_dtype dtype)
{
  for (uint32_t i = 0; i < n; i++) {
    uint64_t elements = extent (k, i);
    k->operand[i] = (struct weft_operand){ random_array (elements, dtype), elements, dtype, 0 };
  }
}

static void
free_operands (struct weft_kernel *k)
{
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
    g_clear_pointer (&k->operand[i].data, g_free);
}

/* ------------------------------------------------------------------------------ output */

/* One printed row of the table. A value of 0 is a column that was not measured. */
struct row {
  const char *name;
  uint64_t dim[5];
  const char *const *columns;
  double value[6];
};

static void
print_row (const struct bench *b, const struct row *r)
{
  g_autoptr (GString) shape = g_string_new (NULL);

  for (unsigned i = 0; i < 5 && r->dim[i]; i++)
    g_string_append_printf (shape, "%s%" G_GUINT64_FORMAT, i ? " " : "", r->dim[i]);
  if (!b->json)
    printf ("%-12s %-18s", r->name, shape->str);
  else {
    json_builder_begin_object (b->json);
    weft_json_text (b->json, "name", r->name);
    weft_json_text (b->json, "shape", shape->str);
  }
  for (unsigned i = 0; r->columns[i]; i++)
    if (b->json && r->value[i] > 0)
      weft_json_real (b->json, r->columns[i], r->value[i]);
    else if (!b->json && r->value[i] > 0)
      printf (" %9.*f", r->value[i] < 10 ? 2 : 1, r->value[i]);
    else if (!b->json)
      printf (" %9s", "-");
  if (b->json)
    json_builder_end_object (b->json);
  else
    puts ("");
  fflush (stdout);
}

static void
print_head (const struct bench *b, const char *shape, const char *const *columns)
{
  if (b->json)
    return;
  printf ("%-12s %-18s", "GF/s", shape);
  for (unsigned i = 0; columns[i]; i++)
    printf (" %9s", columns[i]);
  puts ("");
}

/* ---------------------------------------------------------------------------- products */

static const char *const product_columns[] = { "matmul",   "dgrad", "wgrad", "bf16",
                                               "openblas", "ratio", NULL };

static const struct {
  const char *name;
  uint64_t m, n, k;
} products[] = {
  { "cube", 64, 64, 64 },           { "cube", 512, 512, 512 },
  { "cube", 1024, 1024, 1024 },     { "cube", 2048, 2048, 2048 },
  { "tiny linear", 128, 64, 64 },   { "gpt2 qkv", 1024, 2304, 768 },
  { "gpt2 proj", 1024, 768, 768 },  { "gpt2 up", 1024, 3072, 768 },
  { "gpt2 down", 1024, 768, 3072 }, { "gpt2 head", 1024, 50257, 768 },
};

static void
bench_product (const struct bench *b, unsigned i)
{
  struct row row = {
    products[i].name, { products[i].m, products[i].n, products[i].k }, product_columns, { 0 }
  };
  const struct {
    kernel_run cpu;
    uint64_t (*extent) (const struct weft_kernel *, uint32_t);
    uint32_t operands;
    enum weft_dtype dtype;
  } ops[] = {
    { weft_cpu_matmul, weft_extent_matmul, 4, WEFT_FP32 },
    { weft_cpu_matmul_dgrad, weft_extent_matmul_dgrad, 3, WEFT_FP32 },
    { weft_cpu_matmul_wgrad, weft_extent_matmul_wgrad, 3, WEFT_FP32 },
    { weft_cpu_matmul, weft_extent_matmul, 4, WEFT_BF16 },
  };
  double flops = 2.0 * products[i].m * products[i].n * products[i].k;

  for (unsigned o = 0; o < G_N_ELEMENTS (ops); o++) {
    struct call call = { .cpu = ops[o].cpu, .openblas = b->openblas };
    memcpy (call.k.shape.dim, row.dim, sizeof row.dim);
    set_operands (&call.k, ops[o].extent, ops[o].operands, ops[o].dtype);
    row.value[o] = measure (b, run_cpu, &call, flops);
    if (o == 0 && b->openblas)
      row.value[4] = measure (b, run_openblas, &call, flops);
    free_operands (&call.k);
  }
  row.value[5] = row.value[4] > 0 ? row.value[0] / row.value[4] : 0;
  print_row (b, &row);
}

/* --------------------------------------------------------------------------- attention */

static const char *const attention_columns[] = { "forward", "backward", NULL };

static const struct {
  const char *name;
  uint64_t batch, sequence, heads, groups, width;
} attentions[] = {
  { "tiny", 8, 64, 4, 4, 16 },
  { "gpt2", 1, 1024, 12, 12, 64 },
  { "llama", 1, 1024, 8, 2, 128 },
};

/* Times the forward and the backward kernel of one attention shape. FLOPs are counted as in
 * core/program/op.h: the scores that the backward kernel computes again are not counted. */
static void
bench_attention (const struct bench *b, unsigned i)
{
  struct row row = { attentions[i].name,
                     { attentions[i].batch, attentions[i].sequence, attentions[i].heads,
                       attentions[i].groups, attentions[i].width },
                     attention_columns,
                     { 0 } };
  struct call forward = { .cpu = weft_cpu_attention }, back = { .cpu = weft_cpu_attention_bwd };

  memcpy (forward.k.shape.dim, row.dim, sizeof row.dim);
  memcpy (back.k.shape.dim, row.dim, sizeof row.dim);
  set_operands (&forward.k, weft_extent_attention, 3, WEFT_FP32);
  set_operands (&back.k, weft_extent_attention_bwd, 5, WEFT_FP32);
  row.value[0] =
      measure (b, run_cpu, &forward, weft_op_info[WEFT_OP_ATTENTION].flops (&forward.k.shape));
  /* The backward kernel reads the log-sum-exp that the forward kernel wrote. With a random
   * log-sum-exp, the probabilities of a query would not sum to 1. */
  for (unsigned o = 0; o < 3; o++)
    memcpy (back.k.operand[o].data, forward.k.operand[o].data,
            forward.k.operand[o].n * sizeof (float));
  row.value[1] =
      measure (b, run_cpu, &back, weft_op_info[WEFT_OP_ATTENTION_BWD].flops (&back.k.shape));
  print_row (b, &row);
  free_operands (&forward.k);
  free_operands (&back.k);
}

/* ------------------------------------------------------------------------------- main */

/* OpenBLAS is not unloaded, because its own threads still run. */
static openblas_sgemm
find_openblas (void)
{
  void *library = dlopen ("libopenblas.so.0", RTLD_NOW);
  void (*set_threads) (int) = NULL;
  openblas_sgemm sgemm = NULL;

  if (!library)
    return NULL;
  *(void **) &set_threads = dlsym (library, "openblas_set_num_threads");
  *(void **) &sgemm = dlsym (library, "cblas_sgemm");
  if (set_threads)
    set_threads (1);
  return sgemm;
}

static void
bench_all (const struct bench *b)
{
  print_head (b, "m n k", product_columns);
  for (unsigned i = 0; i < G_N_ELEMENTS (products); i++)
    bench_product (b, i);
  if (!b->json)
    puts ("");
  print_head (b, "b s heads groups w", attention_columns);
  for (unsigned i = 0; i < G_N_ELEMENTS (attentions); i++)
    bench_attention (b, i);
}

static void
bench_json (struct bench *b)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  b->json = builder;
  json_builder_begin_array (builder);
  bench_all (b);
  json_builder_end_array (builder);
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *text = json_to_string (root, TRUE);
  puts (text);
}

int
main (int argc, char **argv)
{
  struct bench b = { .runs = 1, .least = 0.05, .openblas = find_openblas () };
  gboolean json = FALSE;
  const GOptionEntry entries[] = {
    { "json", 0, 0, G_OPTION_ARG_NONE, &json, "print one JSON array", NULL },
    { "runs", 0, 0, G_OPTION_ARG_INT, &b.runs, "runs of each product at least (1)", "N" },
    { NULL },
  };
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_option_context_set_summary (context, "Times matrix products and attention on one core.");
  g_option_context_add_main_entries (context, entries, NULL);
  if (!g_option_context_parse (context, &argc, &argv, &error)) {
    fprintf (stderr, "bench_gemm: %s\n", error->message);
    return weft_error_exit_status (error);
  }
  if (json) {
    bench_json (&b);
    return 0;
  }
  printf ("vector unit: %s\n", weft_tile_best ()->name);
  bench_all (&b);
  return 0;
}
