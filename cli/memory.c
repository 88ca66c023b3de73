#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/sure.h"
#include "core/cluster/fabric.h"
#include "core/plan/activations.h"
#include "core/job/loss.h"
#include "core/base/json.h"
#include "core/base/error.h"
#include "core/report/report.h"
#include "core/base/units.h"
#include "planner/bound.h"
#include <math.h>
#include <stdio.h>

/* --------------------------------------------------------------------- changes */

/* Each of the next functions changes a job so that it needs less memory, and returns whether this
 * was possible. Changes that cost little time come first: sharding over replicas costs little,
 * recompute costs a third of the work. */
static gboolean
shard_optimizer (struct weft_job *job)
{
  if (job->strategy.use_distributed_optimizer || job->strategy.use_megatron_fsdp ||
      weft_job_is_torch (job) || weft_job_dp (job) * job->strategy.context_parallel_size < 2)
    return FALSE;
  job->strategy.use_distributed_optimizer = TRUE;
  return TRUE;
}

/* ZeRO-3: shards gradients and weights too. They are then communicated in every microbatch. */
static gboolean
shard_everything (struct weft_job *job)
{
  if (weft_job_dp (job) * job->strategy.context_parallel_size < 2 || weft_job_is_torch (job) ||
      weft_job_sharding (job) == WEFT_SHARD_PARAMS || job->knob_set[WEFT_KNOB_zero_dp_strategy])
    return FALSE;
  job->strategy.use_distributed_optimizer = FALSE;
  job->strategy.use_megatron_fsdp = TRUE;
  job->strategy.data_parallel_sharding_strategy = WEFT_SHARD_PARAMS;
  weft_job_derive (job);
  return TRUE;
}

/* Computes output head and loss in chunks of tokens: in many small models, the logits are the
 * largest activation. */
static gboolean
chunk_head (struct weft_job *job)
{
  if (weft_job_fuses_head (job))
    return FALSE;
  job->strategy.cross_entropy_loss_fusion = TRUE;
  job->strategy.cross_entropy_fusion_impl = WEFT_LOSS_LINEAR;
  return TRUE;
}

static gboolean
halve_micro_batch (struct weft_job *job)
{
  if (job->train.micro_batch_size % 2)
    return FALSE;
  job->train.micro_batch_size /= 2;
  return TRUE;
}

static gboolean
recompute (struct weft_job *job)
{
  if (job->strategy.recompute_granularity == WEFT_RECOMPUTE_FULL)
    return FALSE;
  job->strategy.recompute_granularity = WEFT_RECOMPUTE_FULL;
  job->strategy.recompute_method = WEFT_RECOMPUTE_UNIFORM;
  job->strategy.recompute_num_layers = 1;
  return TRUE;
}

static gboolean
double_pipeline (struct weft_job *job)
{
  job->strategy.pipeline_model_parallel_size *= 2;
  return TRUE;
}

/* Doubles the tensor-parallel size, as long as the fastest kind of link connects all GPUs of a
 * group. */
static gboolean
double_tensor (struct weft_job *job)
{
  job->strategy.tensor_model_parallel_size *= 2;
  return job->strategy.tensor_model_parallel_size <= weft_fabric_domain (&job->cluster);
}

/* Changes the job so that its optimizer state is in host memory. */
static gboolean
offload_optimizer (struct weft_job *job)
{
  if (job->strategy.optimizer_cpu_offload)
    return FALSE;
  job->strategy.optimizer_cpu_offload = job->strategy.overlap_cpu_optimizer_d2h_h2d = TRUE;
  return TRUE;
}

/* Halves the fraction of the optimizer state that is in host memory, for hosts with too little
 * memory. */
static gboolean
offload_less (struct weft_job *job)
{
  if (!job->strategy.optimizer_cpu_offload)
    return FALSE;
  job->strategy.optimizer_offload_fraction /= 2;
  return TRUE;
}

static gboolean (*const changes[]) (struct weft_job *job) = {
  shard_optimizer, shard_everything, chunk_head,        halve_micro_batch, recompute,
  double_pipeline, double_tensor,    offload_optimizer, offload_less,
};

/* Largest number of changes that are combined. */
enum { MOST_CHANGES = 3 };

static gboolean
is_allowed (const struct weft_job *job)
{
  return weft_strategy_check (&job->strategy, NULL) && weft_job_check (job, NULL);
}

/* Whether a lower bound of the job's memory fits the GPU. The bound needs only a program of a few
 * layers. */
static gboolean
may_fit (const struct weft_job *job)
{
  g_autoptr (weft_segment_cache) cache = weft_segment_cache_new ();

  return weft_bound_passes (cache, job).bytes <= weft_plan_capacity (job);
}

/* Makes the proved plan of a job. NULL if its memory does not fit. Most combinations do not fit, so
 * a plan without proofs (a draft) is made first. */
static weft_plan *
fitting_plan (const struct weft_job *job)
{
  g_autoptr (weft_plan) draft = is_allowed (job) && may_fit (job)
                                    ? weft_plan_new_draft (job, WEFT_PLAN_PLACED, NULL, NULL)
                                    : NULL;

  if (!draft || !weft_plan_fits (draft))
    return NULL;
  if (draft->allocated)
    return weft_plan_new (job, NULL); /* a draft has no offsets that could be proved */
  return weft_plan_check (draft, NULL) ? g_steal_pointer (&draft) : NULL;
}

/* Adds the settings of a job to a set. FALSE: the set already contains equal settings, because
 * different combinations of changes may lead to the same job. */
static gboolean
add_settings (GHashTable *tried, const struct weft_job *job)
{
  g_autoptr (GByteArray) all = g_byte_array_new ();

  g_byte_array_append (all, (const guint8 *) &job->strategy, sizeof job->strategy);
  g_byte_array_append (all, (const guint8 *) &job->train, sizeof job->train);
  return g_hash_table_add (tried, g_byte_array_free_to_bytes (g_steal_pointer (&all)));
}

/* Tries all combinations of `more` changes of the table, from index `first` on, in the order of the
 * table. Returns the plan of the first combination whose memory fits, or NULL. */
static weft_plan *
try_changes (const struct weft_job *job, unsigned first, unsigned more, GHashTable *tried)
{
  if (more == 0)
    return add_settings (tried, job) ? fitting_plan (job) : NULL;
  for (unsigned i = first; i < G_N_ELEMENTS (changes); i++) {
    struct weft_job changed = *job;
    if (!changes[i](&changed))
      continue;
    weft_plan *plan = try_changes (&changed, i, more - 1, tried);
    if (plan)
      return plan;
  }
  return NULL;
}

static weft_plan *
smallest_change (const struct weft_job *job)
{
  g_autoptr (GHashTable) tried =
      g_hash_table_new_full (g_bytes_hash, g_bytes_equal, (GDestroyNotify) g_bytes_unref, NULL);

  for (unsigned n = 1; n <= MOST_CHANGES; n++) {
    weft_plan *plan = try_changes (job, 0, n, tried);
    if (plan)
      return plan;
  }
  return NULL;
}

/* Appends the flags for the settings that differ between `from` and `to`. */
static void
append_flags (GPtrArray *out, const struct weft_table *table, const union weft_value *from,
              const union weft_value *to)
{
  for (unsigned i = 0; i < table->n; i++) {
    if (from[i].i == to[i].i)
      continue;
    g_autofree char *name = g_strdelimit (g_strdup (table->field[i].name), "_", '-');
    g_autofree char *value = weft_field_print (&table->field[i], to[i]);
    g_ptr_array_add (out, table->field[i].type == WEFT_TYPE_BOOL
                              ? g_strdup_printf ("--%s", name)
                              : g_strdup_printf ("--%s %s", name, value));
  }
}

static GPtrArray *
flags_between (const struct weft_job *from, const struct weft_job *to)
{
  GPtrArray *flags = g_ptr_array_new_with_free_func (g_free);

  append_flags (flags, &weft_strategy_table, from->strategy.at, to->strategy.at);
  append_flags (flags, &weft_train_table, from->train.at, to->train.at);
  return flags;
}

/* ---------------------------------------------------------------------- output */

static void
print_advice (const weft_report *report, const weft_plan *fitting)
{
  if (report->fits) {
    g_autofree char *left = weft_units_human (report->capacity_bytes - report->peak_bytes, "B");
    printf ("\n%s free on the fullest GPU\n", left);
    return;
  }
  if (!fitting) {
    g_autofree char *none = g_strdup_printf (
        "\nNo combination of %d changes (optimizer sharding and offload, microbatch size, "
        "recompute, pipeline and tensor size) makes it fit: use more GPUs or a smaller model.",
        MOST_CHANGES);
    weft_cli_print_wrapped (none, 0, weft_cli_columns ());
    return;
  }
  g_autoptr (GPtrArray) flags = flags_between (&report->plan->job, &fitting->job);
  g_autofree char *peak = weft_units_human (weft_plan_worst_bytes (fitting), "B");
  printf ("\nit fits, with a peak of %s, with:\n", peak);
  for (unsigned i = 0; i < flags->len; i++)
    printf ("  %s\n", (const char *) flags->pdata[i]);
}

/* Prints the bytes of activations that one layer keeps for one microbatch. */
static void
print_layer (const struct weft_job *job)
{
  struct weft_kept kept[WEFT_MOST_ACTIVATIONS];
  uint32_t n = weft_activations_of_layer (job, kept);
  double bytes = 0;

  for (uint32_t i = 0; i < n; i++)
    bytes += kept[i].bytes;
  g_autofree char *sum = weft_units_human (bytes, "B");
  if (n)
    printf ("\na layer without full recompute keeps %s per microbatch,\n"
            "in %u tensors (see weft explain)\n",
            g_strstrip (sum), n);
}

static void
print_text (const weft_report *report, const weft_plan *fitting, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  struct weft_report_style style = { weft_cli_columns (), weft_cli_has_colour () };
  g_autoptr (GString) out = g_string_new (NULL);

  weft_report_print_job (&report->plan->job, out);
  g_string_append_c (out, '\n');
  weft_report_print_memory (report, style, out);
  weft_cli_print_fitting (out->str);
  print_layer (&report->plan->job);
  print_advice (report, fitting);
  weft_cli_print_sure (sure, answer);
}

static void
build_change (JsonBuilder *b, const weft_report *report, const weft_plan *fitting)
{
  json_builder_set_member_name (b, "change");
  if (!fitting) {
    json_builder_add_null_value (b);
    return;
  }
  g_autoptr (GPtrArray) flags = flags_between (&report->plan->job, &fitting->job);
  json_builder_begin_object (b);
  weft_json_array (b, "flags");
  for (unsigned i = 0; i < flags->len; i++)
    json_builder_add_string_value (b, flags->pdata[i]);
  json_builder_end_array (b);
  weft_json_int (b, "peak_bytes", weft_plan_worst_bytes (fitting));
  json_builder_end_object (b);
}

static void
print_json (const weft_report *report, const weft_plan *fitting, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.memory/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&report->plan->job, b);
  json_builder_set_member_name (b, "memory");
  weft_report_build_memory (report, b);
  build_change (b, report, fitting);
  weft_cli_add_sure (sure, b, answer);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static int
run (const weft_cli_input *input)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_cli_job (input, &job, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  g_autoptr (weft_plan) plan = sure ? weft_plan_new (&job, &error) : NULL;
  if (!plan)
    return weft_cli_fail (error);
  g_autoptr (weft_report) report = weft_report_new (plan, NULL);
  g_autoptr (weft_plan) fitting = report->fits ? NULL : smallest_change (&plan->job);
  const struct weft_cli_answer answer = { &plan->job, NAN, (double) report->peak_bytes };
  if (input->json)
    print_json (report, fitting, sure, &answer);
  else
    print_text (report, fitting, sure, &answer);
  return report->fits ? 0 : 3;
}

int
weft_cli_memory (int argc, char **argv)
{
  static const struct weft_cli_page page = {
    .usage = "weft memory [JOB] [flags] [--json]",
    .doc =
        "Prints what fills the memory of the GPUs of each stage, and where the peak is.  The "
        "columns are the bytes alive at the peak; padding is lost between buffers; reserved is "
        "memory of libraries.  If the job does not fit, weft memory prints the smallest change "
        "that makes it fit, and ends with status 3.",
    .examples = "  weft memory --model llama2-7b --topology dgx-h100\n"
                "  weft memory job.ini --pipeline-model-parallel-size 4 --json\n",
    .job = TRUE,
  };
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input) : status;
}
