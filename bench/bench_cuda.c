/* GPU kernel benchmark: time of every kernel of a training step, each run alone, and its rate as a
 * share of the GPU's peak FLOP/s and bandwidth. Shapes are those of the models that
 * tests/gpu/run.sh trains.
 *
 * One layer stands for all layers of a model. Buffers hold random numbers near 1, because a GPU
 * draws less power and runs faster on zeros. A kernel runs again and again on the same operands,
 * which may stay in the L2 cache if they are small; `weft measure` times kernels inside real
 * steps.
 *
 * With --json every result is one line, written at once, so that a kernel that faults or hangs
 * loses no other result. Before an op runs, a line names it: tests/gpu starts the program again
 * behind an op that did not end (--from). */
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/job/flags.h"
#include "core/report/report.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "exec_gpu/launches.h"
#include "kernels/bind.h"
#include <stdio.h>
#include <string.h>

#define PATTERN (1u << 24) /* size in bytes of the random pattern with which buffers are filled */
/* a measurement runs the kernel for at least this long, unless MOST_RUNS runs come first */
#define LEAST_SECONDS 0.02
#define MOST_RUNS 200

#define COMMON                                                                                     \
  "topology=hgx-h200 gpus=1 precision=bf16 reduction_order=fast "                                  \
  "gradient_accumulation_fusion=true "
static const struct model {
  const char *name, *words;
  gboolean asked; /* TRUE: the model is measured only if the command line names it */
} models[] = {
  { "gpt2", COMMON "model=gpt2 seq_length=1024 micro_batch_size=64 global_batch_size=64" },
  { "qwen2.5-1.5b",
    COMMON "model=qwen2.5-1.5b seq_length=1024 micro_batch_size=16 global_batch_size=16" },
  { "llama2-7b", COMMON "model=llama2-7b seq_length=4096 micro_batch_size=1 global_batch_size=1 "
                        "grad_reduce_in_fp32=true" },
  /* lm_head and loss in chunks of tokens. All other ops are those of the row gpt2: use --op
   * xent. */
  { "gpt2-chunks",
    COMMON "model=gpt2 seq_length=1024 micro_batch_size=64 global_batch_size=64 "
           "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=linear",
    .asked = TRUE },
  { "gpt2-nano", COMMON "model=gpt2-nano seq_length=16 global_batch_size=1", .asked = TRUE },
};

struct bench {
  const struct weft_gpu_calls *calls;
  weft_gpu_stream *stream;
  weft_gpu_event *begin, *end;
  struct weft_gpu_scratch scratch;
  void *ids;      /* token ids valid for every model, as many as the largest op needs */
  gboolean json;  /* results are printed as lines of JSON, not as a table */
  const char *op; /* only ops whose names begin with this are measured; NULL: all ops */
  gint from;      /* number of the first op that is measured, in the program of one layer */
  gboolean once;  /* run every kernel once, without measuring it, for compute-sanitizer */
};

/* TRUE if `said`, the error text of a call, is NULL. */
static gboolean
no_error (const char *said, GError **error)
{
  return !said || weft_run_error (error, "%s", said);
}
#define CALL(b, name, ...) no_error ((b)->calls->name ((b)->calls->self, ##__VA_ARGS__), error)

/* ---------------------------------------------------------------------------------- jobs */

static weft_plan *
make_plan (const struct model *model, const char *more, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job;

  if (!weft_flags_words (model->words, settings, error) ||
      !weft_flags_words (more, settings, error) || !weft_job_build (settings, &job, error))
    return NULL;
  return weft_plan_new (&job, error);
}

static gboolean
same_work (const weft_program *p, uint32_t op, const weft_program *q, uint32_t other)
{
  return p->op[op].kind == q->op[other].kind &&
         memcmp (weft_op_shape (p, op), weft_op_shape (q, other), sizeof (struct weft_shape)) == 0;
}

/* Returns how many ops of `whole` (the program of a whole step) have the kind and dimensions of op
 * `op` of the one-layer program p. Returns 0 if these dimensions depend on the number of layers. */
static uint32_t
times_in (const weft_program *whole, const weft_program *p, uint32_t op)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < whole->n_op; i++)
    n += same_work (p, op, whole, i);
  return n;
}

/* -------------------------------------------------------------------------------- memory */

/* Fills the pattern with random bf16 values of either sign and magnitude 0.5 to 2. A kernel that
 * reads two neighbouring values as one fp32 number also gets a magnitude of 0.5 to 2. */
static void
fill_pattern (uint16_t *at)
{
  uint32_t seed = 1;

  for (uint32_t i = 0; i < PATTERN / sizeof *at; i++) {
    seed = seed * 1664525 + 1013904223;
    at[i] = (uint16_t) ((seed >> 16 & 0x80ff) | 0x3f00);
  }
}

static gboolean
copy (struct bench *b, enum weft_gpu_way way, void *to, const void *from, uint64_t bytes,
      GError **error)
{
  const struct weft_gpu_copy copy = { way, to, from, bytes };

  return CALL (b, copy, &copy, b->stream);
}

/* Fills a device buffer with the random pattern: copies the pattern once, then doubles the filled
 * part by copies on the device until the buffer is full. */
static gboolean
fill (struct bench *b, uint8_t *at, uint64_t bytes, GError **error)
{
  g_autofree uint16_t *pattern = g_malloc (PATTERN);
  uint64_t done = MIN (bytes, PATTERN);

  fill_pattern (pattern);
  if (!copy (b, WEFT_GPU_TO_DEVICE, at, pattern, done, error))
    return FALSE;
  for (; done < bytes; done += MIN (done, bytes - done))
    if (!copy (b, WEFT_GPU_ON_DEVICE, at + done, at, MIN (done, bytes - done), error))
      return FALSE;
  return CALL (b, finish, b->stream);
}

static gboolean
open_memory (struct bench *b, weft_bind *bind, GError **error)
{
  struct weft_control control = {
    .step = 1, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .loss_scale = 1
  };
  void *there = NULL;

  control.corrected = weft_control_correction (&control);
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    uint64_t bytes = bind->plan->memory[0].planned[pool];
    if (bytes && (!CALL (b, alloc, WEFT_POOL_DEVICE, bytes, &there) ||
                  !fill (b, bind->arena[pool] = there, bytes, error)))
      return FALSE;
  }
  if (!CALL (b, alloc, WEFT_POOL_DEVICE, sizeof control, &there) ||
      !copy (b, WEFT_GPU_TO_DEVICE, there, &control, sizeof control, error))
    return FALSE;
  bind->control = there;
  return CALL (b, finish, b->stream);
}

static void
close_memory (struct bench *b, weft_bind *bind)
{
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    if (bind->arena[pool])
      b->calls->release (b->calls->self, WEFT_POOL_DEVICE, bind->arena[pool]);
  if (bind->control)
    b->calls->release (b->calls->self, WEFT_POOL_DEVICE, (void *) (uintptr_t) bind->control);
}

/* ------------------------------------------------------------------------------- timing */

static void
keep_kernel (void *user, const struct weft_kernel *k)
{
  g_array_append_val ((GArray *) user, *k);
}

/* Gives the kernels valid token ids (below 256, which every model has), allocates scratch, and
 * chooses the cuBLASLt algorithms of matrix products as in training. */
static gboolean
prepare (struct bench *b, GArray *kernels, GError **error)
{
  for (guint i = 0; i < kernels->len; i++) {
    struct weft_kernel *k = &g_array_index (kernels, struct weft_kernel, i);
    uint64_t bytes = b->calls->scratch (b->calls->self, k);
    for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
      if (k->operand[o].data && k->operand[o].dtype == WEFT_INT32)
        k->operand[o].data = b->ids;
    if (bytes <= b->scratch.bytes)
      continue;
    if (b->scratch.at && !CALL (b, release, WEFT_POOL_DEVICE, b->scratch.at))
      return FALSE;
    b->scratch = (struct weft_gpu_scratch){ NULL, bytes };
    if (!CALL (b, alloc, WEFT_POOL_DEVICE, bytes, &b->scratch.at))
      return FALSE;
  }
  return !b->calls->prepare ||
         CALL (b, prepare, (const struct weft_kernel *) (void *) kernels->data, kernels->len,
               &b->scratch, b->stream);
}

static gboolean
run (struct bench *b, const GArray *kernels, uint32_t times, double *seconds, GError **error)
{
  if (!CALL (b, record, b->begin, b->stream))
    return FALSE;
  for (uint32_t i = 0; i < times; i++)
    if (!CALL (b, kernel, &g_array_index (kernels, struct weft_kernel, 0), kernels->len,
               &b->scratch, b->stream))
      return FALSE;
  return CALL (b, record, b->end, b->stream) && CALL (b, finish, b->stream) &&
         CALL (b, elapsed, b->begin, b->end, seconds);
}

/* Seconds of one launch, after a first launch that loads modules. */
static gboolean
time_kernels (struct bench *b, const GArray *kernels, double *seconds, GError **error)
{
  if (!run (b, kernels, 1, seconds, error))
    return FALSE;
  if (b->once)
    return TRUE;
  if (!run (b, kernels, 1, seconds, error))
    return FALSE;
  double wanted = *seconds > 0 ? LEAST_SECONDS / *seconds : MOST_RUNS;
  uint32_t times = wanted < 1 ? 1 : wanted < MOST_RUNS ? (uint32_t) wanted : MOST_RUNS;

  if (!run (b, kernels, times, seconds, error))
    return FALSE;
  *seconds /= times;
  return TRUE;
}

/* -------------------------------------------------------------------------------- output */

/* A row of the printed table, for one op of a model. */
struct row {
  const char *model, *op, *dtype, *by;
  char dims[160];
  uint32_t times;
  /* achieved FLOP/s (of_flops) and bytes/s (of_bytes) as shares of the peak rates of the GPU */
  double seconds, flops, bytes, of_flops, of_bytes;
};

static void
describe (struct row *row, const weft_program *p, uint32_t op, const struct weft_job *job)
{
  const struct weft_shape *shape = weft_op_shape (p, op);
  g_autoptr (GString) dims = g_string_new (NULL);

  for (unsigned d = 0; d < G_N_ELEMENTS (shape->dim) && shape->dim[d]; d++)
    g_string_append_printf (dims, "%s%" G_GUINT64_FORMAT, d ? "x" : "", shape->dim[d]);
  g_strlcpy (row->dims, dims->str, sizeof row->dims);
  row->op = weft_op_words[p->op[op].kind];
  row->dtype = weft_dtype_words[shape->dtype];
  row->flops = weft_op_flops (p, op) / row->seconds;
  row->bytes = weft_op_bytes (p, op) / row->seconds;
  row->of_flops = row->flops / weft_report_printed_peak (job);
  row->of_bytes = row->bytes / job->cluster.f.gpu_memory_bandwidth_spec;
}

/* Ends the object of a builder, prints it as one line, and frees the builder. */
static void
print_line (JsonBuilder *json)
{
  json_builder_end_object (json);
  g_autoptr (JsonNode) root = json_builder_get_root (json);
  g_autofree char *text = weft_json_print (root, FALSE);

  puts (text);
  fflush (stdout);
  g_object_unref (json);
}

static JsonBuilder *
begin_line (void)
{
  JsonBuilder *json = json_builder_new ();

  json_builder_begin_object (json);
  return json;
}

/* Names the op that runs next, with its number in the program. */
static void
print_begin (const char *model, const char *word, uint32_t number)
{
  JsonBuilder *json = begin_line ();

  weft_json_text (json, "model", model);
  weft_json_text (json, "begins", word);
  weft_json_int (json, "number", number);
  print_line (json);
}

static void
print_json (const struct row *r)
{
  JsonBuilder *json = begin_line ();

  weft_json_text (json, "model", r->model);
  weft_json_text (json, "op", r->op);
  weft_json_text (json, "by", r->by);
  weft_json_text (json, "type", r->dtype);
  weft_json_text (json, "dimensions", r->dims);
  weft_json_int (json, "times", r->times);
  weft_json_real (json, "seconds", r->seconds);
  weft_json_real (json, "flops", r->flops);
  weft_json_real (json, "flops_of_peak", r->of_flops);
  weft_json_real (json, "bytes_per_s", r->bytes);
  weft_json_real (json, "bytes_of_peak", r->of_bytes);
  print_line (json);
}

static void
print_row (const struct bench *b, const struct row *r)
{
  if (b->once)
    return;
  if (b->json) {
    print_json (r);
    return;
  }
  printf ("%-13s %-16s %-10s %-5s %-26s %9.1f %7.1f %5.1f %8.0f %5.1f %5u %8.2f\n", r->model, r->op,
          r->by, r->dtype, r->dims, 1e6 * r->seconds, 1e-12 * r->flops, 100 * r->of_flops,
          1e-9 * r->bytes, 100 * r->of_bytes, r->times, 1e3 * r->seconds * r->times);
  fflush (stdout);
}

static void
print_head (const struct bench *b)
{
  if (!b->json && !b->once)
    printf ("%-13s %-16s %-10s %-5s %-26s %9s %7s %5s %8s %5s %5s %8s\n", "model", "op", "by",
            "type", "dimensions", "us", "TFLOP/s", "%", "GB/s", "%", "times", "ms/step");
}

/* --------------------------------------------------------------------------------- main */

/* Whether to time an op: it is the first of its kind and shape, and has a kernel for this
 * device. */
static gboolean
is_timed (const struct bench *b, const weft_program *p, uint32_t op)
{
  enum weft_op_kind kind = p->op[op].kind;

  if ((b->op && !g_str_has_prefix (weft_op_words[kind], b->op)) ||
      op < (uint32_t) b->from ||
      weft_op_info[kind].class != WEFT_CLASS_COMPUTE || !weft_kernels[kind].cpu ||
      p->op[op].lane == WEFT_LANE_HOST || !b->calls->has_kernel (b->calls->self, kind))
    return FALSE;
  for (uint32_t i = 0; i < op; i++)
    if (same_work (p, op, p, i))
      return FALSE;
  return TRUE;
}

static gboolean
bench_kernels (struct bench *b, const weft_bind *bind, uint32_t op, GArray *kernels,
               struct row *row, GError **error)
{
  if (!prepare (b, kernels, error) || !time_kernels (b, kernels, &row->seconds, error))
    return FALSE;
  describe (row, bind->p, op, &bind->plan->job);
  print_row (b, row);
  return TRUE;
}

/* Times an attention op again with the vendor library (cuDNN). Backward ops are timed in
 * deterministic mode as well. Prints a message if the library is missing or does not support the
 * op. */
static gboolean
bench_fused (struct bench *b, const weft_bind *bind, uint32_t op, GArray *kernels, struct row *row,
             GError **error)
{
  struct weft_kernel *k = &g_array_index (kernels, struct weft_kernel, 0);
  gboolean backward = k->kind == WEFT_OP_ATTENTION_BWD, done = TRUE;

  k->fused = TRUE;
  for (int same = 0; done && b->calls->fuses && same <= backward; same++) {
    k->deterministic = same;
    row->by = same ? "cudnn-same" : "cudnn";
    if (b->calls->fuses (b->calls->self, k))
      done = bench_kernels (b, bind, op, kernels, row, error);
    else
      fprintf (stderr,
               "bench_cuda: %s of %s is not timed with cuDNN, which is missing or does not "
               "support it\n",
               weft_op_words[k->kind], row->model);
  }
  return done;
}

static gboolean
bench_op (struct bench *b, const weft_bind *bind, uint32_t op, struct row *row, GError **error)
{
  g_autoptr (GArray) kernels = g_array_new (FALSE, FALSE, sizeof (struct weft_kernel));
  enum weft_op_kind kind = bind->p->op[op].kind;

  weft_bind_kernels (bind, op, keep_kernel, kernels);
  if (kernels->len == 0)
    return TRUE;
  if (b->json)
    print_begin (row->model, weft_op_words[kind], op);
  row->by = "weft";
  if (!bench_kernels (b, bind, op, kernels, row, error))
    return FALSE;
  return (kind != WEFT_OP_ATTENTION && kind != WEFT_OP_ATTENTION_BWD) ||
         bench_fused (b, bind, op, kernels, row, error);
}

static gboolean
bench_model (struct bench *b, const struct model *model, GError **error)
{
  g_autoptr (weft_plan) plan = make_plan (model, "num_layers=1", error);
  g_autoptr (weft_plan) whole = plan ? make_plan (model, "", error) : NULL;
  g_auto (weft_bind) bind = { 0 };

  if (!whole)
    return FALSE;
  weft_bind_init (&bind, plan, 0);
  gboolean done = open_memory (b, &bind, error);
  for (uint32_t op = 0; done && op < plan->role[0]->n_op; op++) {
    struct row row = { .model = model->name };
    if (!is_timed (b, plan->role[0], op))
      continue;
    row.times = times_in (whole->role[0], plan->role[0], op);
    done = bench_op (b, &bind, op, &row, error);
  }
  close_memory (b, &bind);
  return done;
}

/* ----------------------------------------------------------------- the device itself */

/* Prints a line that describes the GPU, and a line for each library with the path from which the
 * loader took it. */
static void
print_library (void *user, const struct weft_gpu_library *library)
{
  JsonBuilder *json = begin_line ();

  (void) user;
  weft_json_text (json, "library", library->name);
  (library->version ? weft_json_text (json, "version", library->version)
                    : weft_json_null (json, "version"));
  (library->path ? weft_json_text (json, "path", library->path) : weft_json_null (json, "path"));
  if (library->missing)
    weft_json_text (json, "missing", library->missing);
  print_line (json);
}

static gboolean
print_device (struct bench *b, GError **error)
{
  struct weft_gpu_device device;

  if (!(b->calls = weft_cuda_load (error)))
    return FALSE;
  if (b->calls->libraries)
    b->calls->libraries (b->calls->self, print_library, NULL);
  if (!CALL (b, describe, 0, &device))
    return FALSE;
  JsonBuilder *json = begin_line ();
  weft_json_text (json, "device", device.name);
  weft_json_int (json, "sms", device.sms);
  weft_json_int (json, "capability", 10 * device.major + device.minor);
  weft_json_int (json, "bytes", (int64_t) device.bytes);
  weft_json_int (json, "free_bytes", (int64_t) device.free);
  print_line (json);
  return TRUE;
}

static void
print_ceiling (const char *what, const char *unit, double rate, double seconds)
{
  JsonBuilder *json = begin_line ();

  weft_json_text (json, "ceiling", what);
  weft_json_real (json, unit, rate);
  weft_json_real (json, "seconds", seconds);
  print_line (json);
}

#define SIDE 8192
#define COPIED ((uint64_t) 2 << 30)

/* Allocates and fills a buffer, which lives until the end of the program. */
static gboolean
random_buffer (struct bench *b, uint64_t bytes, void **at, GError **error)
{
  return CALL (b, alloc, WEFT_POOL_DEVICE, bytes, at) && fill (b, *at, bytes, error);
}

/* A product of square bf16 matrices: what cuBLASLt reaches on this card. */
static gboolean
time_product (struct bench *b, GError **error)
{
  static const union weft_model model;
  g_autoptr (GArray) kernels = g_array_new (FALSE, FALSE, sizeof (struct weft_kernel));
  const uint64_t n = (uint64_t) SIDE * SIDE;
  struct weft_kernel k = { .kind = WEFT_OP_MATMUL,
                           .shape = { .dtype = WEFT_BF16, .dim = { SIDE, SIDE, SIDE } },
                           .model = &model };
  static const unsigned used[] = { 0, 1, 3 }; /* x, w and y; operand 2 is the bias */
  double seconds = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (used); i++) {
    k.operand[used[i]] = (struct weft_operand){ NULL, n, WEFT_BF16, 0 };
    if (!random_buffer (b, 2 * n, &k.operand[used[i]].data, error))
      return FALSE;
  }
  g_array_append_val (kernels, k);
  if (!prepare (b, kernels, error) || !time_kernels (b, kernels, &seconds, error))
    return FALSE;
  print_ceiling ("bf16 matmul of 8192 x 8192 x 8192", "flops", 2.0 * SIDE * (double) n / seconds,
                 seconds);
  return TRUE;
}

/* A copy within the memory of the GPU, which counts bytes read and bytes written. The fastest of
 * ten. */
static gboolean
time_copy (struct bench *b, GError **error)
{
  void *from = NULL, *to = NULL;
  double least = 0, took = 0;

  if (!random_buffer (b, COPIED, &from, error) || !random_buffer (b, COPIED, &to, error))
    return FALSE;
  for (int i = 0; i < 10; i++) {
    if (!CALL (b, record, b->begin, b->stream) ||
        !copy (b, WEFT_GPU_ON_DEVICE, to, from, COPIED, error) ||
        !CALL (b, record, b->end, b->stream) || !CALL (b, finish, b->stream) ||
        !CALL (b, elapsed, b->begin, b->end, &took))
      return FALSE;
    least = i == 0 || took < least ? took : least;
  }
  print_ceiling ("copy of 2 GiB in GPU memory", "bytes_per_s", 2.0 * (double) COPIED / least,
                 least);
  return TRUE;
}

static gboolean
print_ceilings (struct bench *b, GError **error)
{
  static const char *const words[] = { WEFT_HOST_COST_LIST (WEFT_WORD_TEXT) };
  double host[WEFT_N_HOST_COST];

  if (!time_product (b, error) || !time_copy (b, error) ||
      !weft_gpu_time_launches (b->calls, host, error))
    return FALSE;
  for (unsigned i = 0; i < WEFT_N_HOST_COST; i++)
    print_ceiling (words[i], "per_s", 1 / host[i], host[i]);
  return TRUE;
}

static gboolean
open_device (struct bench *b, GError **error)
{
  g_autofree int32_t *ids = g_new (int32_t, PATTERN / sizeof (int32_t));
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);

  for (uint32_t i = 0; i < PATTERN / sizeof *ids; i++)
    ids[i] = g_rand_int_range (rand, 0, 256);
  return (b->calls = weft_cuda_load (error)) && CALL (b, choose, 0) &&
         CALL (b, stream_open, FALSE, &b->stream) && CALL (b, event_open, TRUE, &b->begin) &&
         CALL (b, event_open, TRUE, &b->end) &&
         CALL (b, alloc, WEFT_POOL_DEVICE, PATTERN, &b->ids) &&
         copy (b, WEFT_GPU_TO_DEVICE, b->ids, ids, PATTERN, error) && CALL (b, finish, b->stream);
}

/* Measures all models, or one. Each op is printed when it has been measured, so an error loses no
 * earlier measurement. */
static gboolean
bench_all (struct bench *b, const char *only, GError **error)
{
  gboolean found = FALSE;

  print_head (b);
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    gboolean wanted = only ? g_str_equal (only, models[i].name) : !models[i].asked;
    if (wanted && !bench_model (b, &models[i], error))
      return FALSE;
    found |= wanted;
  }
  return found ||
         weft_bad_input (error, "--model: found %s, wanted a name that --help lists", only);
}

/* Executes the command line. */
static gboolean
be_asked (struct bench *b, const char *only, gboolean device, gboolean ceilings, GError **error)
{
  if (device)
    return print_device (b, error);
  if (!open_device (b, error))
    return FALSE;
  return ceilings ? print_ceilings (b, error) : bench_all (b, only, error);
}

int
main (int argc, char **argv)
{
  struct bench b = { 0 };
  gboolean device = FALSE, ceilings = FALSE;
  g_autofree char *only = NULL, *op = NULL;
  const GOptionEntry entries[] = {
    { "json", 0, 0, G_OPTION_ARG_NONE, &b.json, "print lines of JSON", NULL },
    { "model", 0, 0, G_OPTION_ARG_STRING, &only, "one of gpt2, qwen2.5-1.5b, llama2-7b, gpt2-nano",
      "NAME" },
    { "op", 0, 0, G_OPTION_ARG_STRING, &op, "only ops whose names begin with WORD", "WORD" },
    { "from", 0, 0, G_OPTION_ARG_INT, &b.from, "only ops from this number on, of one model", "N" },
    { "once", 0, 0, G_OPTION_ARG_NONE, &b.once, "run each kernel once, for compute-sanitizer",
      NULL },
    { "device", 0, 0, G_OPTION_ARG_NONE, &device,
      "print the GPU, and the libraries with versions and paths, as lines of JSON", NULL },
    { "ceilings", 0, 0, G_OPTION_ARG_NONE, &ceilings,
      "print what a large matmul, a copy and a launch reach on this GPU, as lines of JSON", NULL },
    { NULL },
  };
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_option_context_set_summary (context,
                                "Times the kernels of a step on a GPU; WEFT_WARPGROUPS=0 in the "
                                "environment: without those that only compute capability 9.0 has.");
  g_option_context_add_main_entries (context, entries, NULL);
  gboolean parsed = g_option_context_parse (context, &argc, &argv, &error);
  b.op = op;
  if (parsed && be_asked (&b, only, device, ceilings, &error))
    return 0;
  fprintf (stderr, "bench_cuda: %s\n", error->message);
  return weft_error_exit_status (error);
}
