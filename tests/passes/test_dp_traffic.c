/* Data-parallel communication of a step at each sharding level. Bytes must follow the formulas of
 * Megatron-FSDP. The exposed share must be the same on the timeline, in the text and in the JSON of
 * weft sim. */
#include "core/report/report.h"
#include "core/passes/params/params.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>

#define LAYERS 8
#define MICROS 3
#define MODEL                                                                                      \
  "num_layers=8 num_query_groups=4 vocab_size=512 activation=swiglu normalization=rmsnorm "        \
  "topology=dgx-h100 precision=bf16 "
/* SMALL: tensors large enough that collectives are rings, and a model small enough to be planned
 * many times. */
#define SMALL MODEL "hidden_size=1024 num_attention_heads=8 ffn_hidden_size=3072 seq_length=64 "
#define LARGE MODEL "hidden_size=4096 num_attention_heads=32 ffn_hidden_size=12288 seq_length=4096 "

/* ---------------------------------------------------------------- wire bytes */

static gboolean
is_named (const weft_program *p, uint32_t op, const char *word)
{
  return g_str_has_prefix (p->name[p->op[op].name], word);
}

/* Computes the bytes that rank 0 sends in reductions and gathers of buckets, on a cluster of one
 * node. */
static void
wire (const weft_plan *plan, double *gradients, double *weights)
{
  const weft_program *p = plan->role[0];
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, WEFT_GROUP_DP);
  struct weft_coll_shape shape;

  *gradients = *weights = 0;
  weft_coll_shape_init (&shape, &plan->fabric, &group);
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!is_named (p, op, "bucket ") && !is_named (p, op, "gather "))
      continue;
    struct weft_traffic t =
        weft_coll_plan (&shape, p->op[op].kind, weft_op_bytes (p, op), NULL, WEFT_COLL_RING);
    *(p->op[op].kind == WEFT_OP_ALL_GATHER ? weights : gradients) += t.bytes[WEFT_WAY_LOCAL];
  }
  weft_coll_shape_release (&shape);
}

static double
bucket_elements (const weft_program *p, uint32_t k)
{
  g_autofree char *name = g_strdup_printf ("bucket %u", k);

  for (uint32_t op = 0; op < p->n_op; op++)
    if (strcmp (p->name[p->op[op].name], name) == 0)
      return weft_op_shape (p, op)->dim[0];
  fail_msg ("nobody reduces bucket %u", k);
  return 0;
}

/* Computes the elements of all buckets with padding. `units`: elements of the layers; `outside`:
 * all other elements. */
static void
padded (const weft_plan *plan, double *units, double *outside)
{
  const weft_program *p = plan->role[0];
  uint32_t seen = UINT32_MAX;

  *units = *outside = 0;
  for (uint32_t i = 0; i < p->n_param; i++) {
    if (p->param[i].bucket != seen)
      *(p->param[i].layer == WEFT_NO_LAYER ? outside : units) +=
          bucket_elements (p, p->param[i].bucket);
    seen = p->param[i].bucket;
  }
}

/* Elements that levels 0 to 3 of Megatron-FSDP send, for N parameters and m microbatches. Level 0:
 * 2 N (an all-reduce counts twice); level 1: 2 N; level 2: (m + 1) N; level 3: 3 m N for parameters
 * in units. Parameters outside units are gathered once per step at level 3. */
static void
data_parallel_sharding_strategy_sends_what_its_level_says (void **state)
{
  static const struct {
    double gradients, weights, outside_weights;
  } times[] = { { 2, 0, 0 }, { 1, 1, 1 }, { MICROS, 1, 1 }, { MICROS, 2 * MICROS, 1 } };
  static const struct {
    const char *words;
    /* bytes per reduced gradient element and per gathered weight element */
    double gradient, weight;
  } types[] = { { "grad_reduce_in_fp32=true", 4, 2 }, { "", 2, 2 }, { "precision=fp32", 4, 4 } };
  static const uint32_t replicas[] = { 2, 4, 8 };

  (void) state;
  for (unsigned level = 0; level < 4; level++)
    for (unsigned t = 0; t < G_N_ELEMENTS (types); t++)
      for (unsigned d = 0; d < G_N_ELEMENTS (replicas); d++) {
        double D = replicas[d], units, outside, gradients, weights;
        g_autoptr (weft_plan) plan = weft_test_plan (
            SMALL "%s use_megatron_fsdp=true zero_dp_strategy=%u gpus=%u global_batch_size=%u",
            types[t].words, level, replicas[d], MICROS * replicas[d]);
        padded (plan, &units, &outside);
        wire (plan, &gradients, &weights);
        double share = (D - 1) / D;
        assert_near (gradients,
                     times[level].gradients * (units + outside) * share * types[t].gradient);
        if (level)
          assert_near (weights,
                       (times[level].weights * units + times[level].outside_weights * outside) *
                           share * types[t].weight);
        else
          assert_true (weights == 0);
      }
}

static void
use_distributed_optimizer_sends_as_much_as_without (void **state)
{
  static const char job[] = SMALL "gpus=4 global_batch_size=12 ";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s", job);
  g_autoptr (weft_plan) sharded = weft_test_plan ("%suse_distributed_optimizer=true", job);
  double units, outside, gradients, weights;

  (void) state;
  wire (plain, &gradients, &weights);
  padded (plain, &units, &outside);
  assert_near (gradients, 2 * (units + outside) * 0.75 * 2);
  wire (sharded, &gradients, &weights);
  padded (sharded, &units, &outside);
  assert_near (gradients, (units + outside) * 0.75 * 2);
  assert_near (weights, gradients);
}

/* -------------------------------------------------------------------- overlap */

struct shown {
  double busy, exposed, gathers;
};

static struct shown
run (const weft_plan *plan)
{
  const weft_program *p = plan->role[0];
  g_autoptr (weft_timeline) t = made_run (plan);
  g_autoptr (weft_report) report = weft_report_new (plan, t);
  struct shown shown = { .busy = report->axis[WEFT_LANE_DP].busy_s,
                         .exposed = report->axis[WEFT_LANE_DP].exposed_s };

  for (uint32_t op = 0; op < p->n_op; op++) {
    double seconds = t->end[0][op] - t->begin[0][op];
    shown.gathers += is_named (p, op, "gather ") ? seconds : 0;
  }
  return shown;
}

#define UNITS LARGE "gpus=8 global_batch_size=24 use_megatron_fsdp=true zero_dp_strategy=3 "

/* With prefetch most communication overlaps with kernels. The only exposed gathers are the first
 * gather of a step, and those that wait for reductions of the previous microbatch. Without prefetch
 * every gather is exposed. */
static void
suggested_communication_unit_size_hides_gathers_or_shows_them (void **state)
{
  g_autoptr (weft_plan) ahead = weft_test_plan (UNITS);
  g_autoptr (weft_plan) late = weft_test_plan (UNITS "suggested_communication_unit_size=1");
  struct shown hidden = run (ahead), shown = run (late);

  (void) state;
  assert_true (hidden.exposed < 0.15 * hidden.busy);
  assert_true (shown.exposed > 0.95 * shown.gathers);
  assert_true (shown.exposed < shown.busy);
}

static void
overlap_grad_reduce_and_overlap_param_gather_hide_buckets (void **state)
{
  static const char job[] =
      LARGE "gpus=8 global_batch_size=24 use_distributed_optimizer=true bucket_size=50000000 ";
  g_autoptr (weft_plan) none = weft_test_plan ("%s", job);
  g_autoptr (weft_plan) grads = weft_test_plan ("%soverlap_grad_reduce=true", job);
  g_autoptr (weft_plan) both =
      weft_test_plan ("%soverlap_grad_reduce=true overlap_param_gather=true", job);
  struct shown a = run (none), b = run (grads), c = run (both);

  (void) state;
  /* Without overlap_param_gather, only the optimizer update of one bucket overlaps with the gather
   * of another bucket. */
  assert_true (a.exposed > 0.99 * a.busy);
  assert_true (b.exposed < 0.7 * b.busy && b.exposed > 0.95 * b.gathers);
  assert_true (c.exposed < 0.25 * c.busy);
}

/* ------------------------------------------------------------- what users see */

static char *
weft (const char *flags)
{
  g_autofree char *command =
      g_strdup_printf ("%s sim --model llama-nano --topology dgx-h100 --gpus 4 "
                       "--pipeline-model-parallel-size 2 --global-batch-size 8 %s",
                       WEFT_BINARY, flags);
  char *out;
  int status;

  assert_true (g_spawn_command_line_sync (command, &out, NULL, &status, NULL));
  assert_int_equal (status, 0);
  return out;
}

/* `weft sim` prints busy and exposed time of every mesh axis in use, and of all axes together. */
static void
weft_sim_tells_time_and_exposed_time_of_each_axis (void **state)
{
  static const char *const used[] = { "dp", "pp", "world", "h2d", "d2h" };
  g_autofree char *page = weft (""), *text = weft ("--json");
  g_autoptr (JsonNode) root = json_from_string (text, NULL);
  JsonObject *overlap = json_object_get_object_member (json_node_get_object (root), "overlap");
  JsonObject *axes = json_object_get_object_member (overlap, "by_axis");
  double sum = 0;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (used); i++) {
    JsonObject *axis = json_object_get_object_member (axes, used[i]);
    double busy = json_object_get_double_member (axis, "busy_s"),
           exposed = json_object_get_double_member (axis, "exposed_s");
    g_autofree char *row = g_strdup_printf ("\n  %s ", used[i]);
    assert_true (busy > 0 && exposed >= 0 && exposed <= busy);
    assert_non_null (strstr (page, row));
    sum += busy;
  }
  double all = json_object_get_double_member (overlap, "communication_s"),
         exposed = json_object_get_double_member (overlap, "exposed_communication_s");
  assert_true (all > 0 && all <= sum * (1 + 1e-12) && exposed > 0 && exposed <= all);
  assert_non_null (strstr (page, "\n  together "));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (data_parallel_sharding_strategy_sends_what_its_level_says),
  cmocka_unit_test (use_distributed_optimizer_sends_as_much_as_without),
  cmocka_unit_test (suggested_communication_unit_size_hides_gathers_or_shows_them),
  cmocka_unit_test (overlap_grad_reduce_and_overlap_param_gather_hide_buckets),
  cmocka_unit_test (weft_sim_tells_time_and_exposed_time_of_each_axis),
};

WEFT_TESTS (tests)
