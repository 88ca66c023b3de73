#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "core/base/json.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/job/pipeline.h"
#include "core/plan/check.h"
#include "core/plan/plan.h"
#include "core/program/program_json.h"
#include "core/passes/step.h"
#include "interop/chakra/chakra.h"
#include "core/base/units.h"
#include "core/base/wrap.h"
#include <stdio.h>

struct lane_sum {
  uint32_t ops;
  double flops, bytes;
};

static struct lane_sum
sum_lane (const weft_program *p, enum weft_lane lane)
{
  struct lane_sum sum = { .ops = p->lane_n[lane] };

  for (uint32_t i = 0; i < sum.ops; i++) {
    sum.flops += weft_op_flops (p, p->lane_ops[lane][i]);
    sum.bytes += weft_op_bytes (p, p->lane_ops[lane][i]);
  }
  return sum;
}

static void
print_lane (const weft_program *p, enum weft_lane lane)
{
  struct lane_sum sum = sum_lane (p, lane);
  g_autofree char *bytes = weft_units_human (sum.bytes, "B");
  g_autofree char *flops = weft_units_human (sum.flops, "FLOP");

  if (sum.ops)
    printf ("#   %-8s %6u ops %10s%s%s\n", weft_lane_words[lane], sum.ops, bytes,
            sum.flops > 0 ? "  " : "", sum.flops > 0 ? flops : "");
}

/* Prints the size of a pool's arena and the kinds of buffers in it at its peak. Prints nothing for
 * a pool without an arena. */
static void
print_pool (const struct weft_memory *memory, enum weft_pool pool)
{
  g_autofree char *planned = weft_units_human (memory->planned[pool], "B");

  if (!memory->planned[pool])
    return;
  printf ("# %s arena %s, at its peak\n", weft_pool_words[pool], planned);
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++) {
    g_autofree char *bytes = weft_units_human (memory->at_peak[pool][kind], "B");
    if (memory->at_peak[pool][kind])
      printf ("#   %-14s %10s\n", weft_buf_kind_words[kind], bytes);
  }
}

/* The layers of a program as text, such as "0 to 3, 8 to 11". The caller frees the text. */
static char *
layers_of (const weft_program *p)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0, chunk = UINT32_MAX; i < p->n_param; i++) {
    uint32_t last = i;
    if (p->param[i].layer == WEFT_NO_LAYER || p->param[i].chunk == chunk)
      continue;
    chunk = p->param[i].chunk;
    for (uint32_t j = i; j < p->n_param && p->param[j].chunk == chunk; j++)
      last = p->param[j].layer == WEFT_NO_LAYER ? last : j;
    g_string_append_printf (text, "%s%u to %u", text->len ? ", " : "", p->param[i].layer,
                            p->param[last].layer);
  }
  return g_string_free (text, FALSE);
}

/* Prints rows of a program. A row that is wider than the terminal is broken after a backslash; the
 * parser joins such lines. */
static void
print_rows (const char *text)
{
  const int columns = weft_cli_columns ();
  g_autofree char *fitting = columns < G_MAXINT ? weft_wrap_rows (text, columns) : NULL;

  fputs (fitting ? fitting : text, stdout);
}

/* Prints a program as text. The lines above it are comments, so that the parser can read the whole
 * output. */
static void
print_text (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  g_autofree char *text = weft_program_print (p);
  g_autofree char *layers = layers_of (p);

  g_autofree char *head =
      g_strdup_printf ("# role %u of %u: layers %s, %u ranks\n", role, plan->n_roles, layers,
                       weft_mesh_stage_size (&plan->mesh));

  print_rows (head);
  printf ("# %u ops by lane, with the bytes they move\n", p->n_op);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    print_lane (p, lane);
  printf ("# %u buffers\n", p->n_buf);
  for (int pool = 0; pool < WEFT_N_POOL; pool++)
    print_pool (&plan->memory[role], pool);
  print_rows (text);
}

static void
print_piece (const char *piece, void *unused)
{
  (void) unused;
  fputs (piece, stdout);
}

static void
print_dot (const weft_program *p)
{
  g_autofree char *dot = weft_program_dot (p);
  fputs (dot, stdout);
}

/* --------------------------------------------------------------------- schedule */

static void
add_rank (JsonBuilder *b, const weft_grid *grid, uint32_t rank)
{
  json_builder_begin_array (b);
  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    g_autofree char *cell = weft_cell_print (grid, rank, &grid->cell[rank][i]);
    json_builder_add_string_value (b, cell);
  }
  json_builder_end_array (b);
}

static void
print_schedule_json (const weft_grid *grid, const char *schedule)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schedule", schedule);
  weft_json_int (b, "stages", grid->n_ranks);
  weft_json_int (b, "chunks", grid->n_chunks);
  weft_json_array (b, "ranks");
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    add_rank (b, grid, rank);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static gboolean
has_phase (const weft_grid *grid, enum weft_phase phase)
{
  for (uint32_t i = 0; i < grid->n_cell[0]; i++)
    if (grid->cell[0][i].phase == phase)
      return TRUE;
  return FALSE;
}

static void
print_picture (const weft_grid *grid, const char *schedule)
{
  g_autofree char *picture = weft_grid_ascii (grid, weft_cli_columns ());
  /* number of chunks per rank, for one copy of the model */
  double whole = (double) grid->n_stages / grid->n_ranks;

  g_autofree char *head = g_strdup_printf (
      "%s: %u ranks, %u stages, %u microbatches, at most %.4g in flight on rank 0\n\n", schedule,
      grid->n_ranks, grid->n_stages, grid->n_micro, weft_grid_in_flight (grid, 0) / whole);

  weft_cli_print_fitting (head);
  printf ("%s\n", picture);
  printf ("one row per %s; a digit (the last of the microbatch\n"
          "number) is a forward pass of one slot, a letter (a for 0) a backward pass of\n"
          "two slots, a dot an idle slot\n",
          grid->n_chunks > 1 ? "pipeline rank and stage" : "pipeline rank");
  if (has_phase (grid, WEFT_PHASE_WEIGHT_GRAD))
    printf (
        "of a split backward pass, a small letter is the input gradient and a capital\n"
        "letter the weight gradient, one slot each\n");
}

static int
draw_schedule (const weft_grid *grid, const struct weft_cli_figure_ask *ask)
{
  g_autoptr (weft_figure) figure = weft_cli_figure_schedule (grid);
  g_autoptr (GError) error = NULL;

  return weft_cli_figure_write (ask, figure, &error) ? 0 : weft_cli_fail (error);
}

/* ------------------------------------------------------------------- the command */

struct request {
  const char *role, *rank, *read, *chakra;
  struct weft_cli_figure_ask figure;
  gboolean dot, schedule, csv, json, init;
};

static int
print_schedule (const struct request *request, const struct weft_job *job)
{
  const char *file = weft_job_schedule_file (job);
  const char *schedule = file ? file : weft_schedule_words[job->strategy.pipeline_schedule];
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_grid) grid = weft_job_grid (job, &error);

  if (!grid)
    return weft_cli_fail (error);
  if (request->figure.path)
    return draw_schedule (grid, &request->figure);
  if (request->csv) {
    g_autofree char *csv = weft_grid_csv (grid);
    fputs (csv, stdout);
  } else if (request->json) {
    print_schedule_json (grid, schedule);
  } else {
    print_picture (grid, schedule);
  }
  return 0;
}

/* Parses the value of a flag as the number of a pipeline stage or a rank (`what`). The number must
 * be below n. */
static gboolean
read_below (const char *flag, const char *what, const char *text, uint32_t n, int64_t *out,
            GError **error)
{
  if (!weft_cli_number (flag, what, text, 0, out, error))
    return FALSE;
  return *out < n ||
         weft_bad_input (error, "--%s: found %s, wanted %s from 0 to %u", flag, text, what, n - 1);
}

static gboolean
find_role (const struct request *request, const weft_plan *plan, uint32_t *role, GError **error)
{
  int64_t n = 0;

  if (request->rank) {
    if (!read_below ("rank", "a rank", request->rank, plan->mesh.n_ranks, &n, error))
      return FALSE;
    *role = weft_mesh_stage (&plan->mesh, n);
    return TRUE;
  }
  if (request->role && !read_below ("role", "a stage", request->role, plan->n_roles, &n, error))
    return FALSE;
  *role = n;
  return TRUE;
}

/* Writes Chakra traces of all ranks, or of --rank, and says how ASTRA-sim reads them. */
static gboolean
write_chakra (const struct request *request, const weft_plan *plan, GError **error)
{
  int64_t only = -1;
  uint64_t bytes;

  if (request->rank &&
      !read_below ("rank", "a rank", request->rank, plan->mesh.n_ranks, &only, error))
    return FALSE;
  if (!weft_chakra_write (plan, request->chakra, only, &bytes, error))
    return FALSE;
  g_autofree char *size = weft_units_human ((double) bytes, "B");
  printf ("%u traces of %s: weft.RANK.et and comm_groups.json in %s\n"
          "ASTRA-sim: --workload-configuration=%s/weft "
          "--comm-group-configuration=%s/comm_groups.json\n",
          only < 0 ? plan->mesh.n_ranks : 1, size, request->chakra, request->chakra,
          request->chakra);
  return TRUE;
}

static int
print_program (const struct request *request, const struct weft_job *job)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan =
      request->init ? weft_plan_new_startup (job, &error) : weft_plan_new (job, &error);
  uint32_t role;

  if (!plan || !find_role (request, plan, &role, &error))
    return weft_cli_fail (error);
  if (request->chakra)
    return write_chakra (request, plan, &error) ? 0 : weft_cli_fail (error);
  if (request->json)
    weft_program_write_json (plan->role[role], print_piece, NULL);
  else if (request->dot)
    print_dot (plan->role[role]);
  else
    print_text (plan, role);
  return 0;
}

/* Largest size of a program as text, in bytes: about 10 million ops. */
#define MOST_TEXT ((gsize) 1 << 31)

static weft_program *
load_program (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST_TEXT, &length, error);

  if (!text || !weft_file_check_text (text, length, path, error))
    return NULL;
  g_autoptr (weft_program) p = weft_program_parse (text, path, error);
  if (!p)
    return NULL;
  if (weft_check_program (p, error) && weft_check_addresses (p, error))
    return g_steal_pointer (&p);
  g_prefix_error (error, "%s: ", path);
  return NULL;
}

/* Reads a program from a file, checks it and prints it. Returns the exit status. */
static int
reprint (const struct request *request)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_program) p = load_program (request->read, &error);

  if (!p)
    return weft_cli_fail (error);
  if (request->json) {
    weft_program_write_json (p, print_piece, NULL);
  } else if (request->dot) {
    print_dot (p);
  } else {
    g_autofree char *text = weft_program_print (p);
    print_rows (text);
  }
  return 0;
}

/* Whether the arguments describe a job. TRUE: they name a file or set a setting of a job. */
static gboolean
names_a_job (const weft_cli_input *input)
{
  return weft_settings_touch (input->settings, NULL) || input->operand != NULL;
}

static gboolean
check_read (const struct request *r, const weft_cli_input *input, GError **error)
{
  const char *flag = r->schedule ? "--schedule"
                     : r->chakra ? "--chakra"
                     : r->role   ? "--role"
                     : r->rank   ? "--rank"
                     : r->init   ? "--init"
                                 : NULL;

  if (!r->read || (!flag && !names_a_job (input)))
    return TRUE;
  return weft_bad_input (error, "found --read and %s, wanted one of them: the file is the program",
                         flag ? flag : "a job");
}

/* Refuses combinations of flags that contradict each other or have no effect together. */
static gboolean
check_request (const struct request *r, GError **error)
{
  if (r->role && r->rank)
    return weft_bad_input (error, "--role and --rank exclude each other");
  if (!weft_cli_figure_check (&r->figure, error))
    return FALSE;
  if ((r->csv || r->figure.path) && !r->schedule)
    return weft_bad_input (error, "--%s needs --schedule", r->csv ? "csv" : "figure");
  if (r->schedule && (r->dot || r->role || r->rank || r->init))
    return weft_bad_input (
        error, "--schedule and --%s exclude each other: a schedule covers all ranks",
        r->dot    ? "dot"
        : r->role ? "role"
        : r->rank ? "rank"
                  : "init");
  if (r->chakra && (r->schedule || r->role || r->json || r->dot))
    return weft_bad_input (error, "--chakra and --%s exclude each other: traces have all stages",
                           r->schedule ? "schedule" : r->role ? "role" : r->json ? "json" : "dot");
  if (r->json + r->csv + r->dot + (r->figure.path != NULL) > 1)
    return weft_bad_input (error, "--json, --dot, --csv and --figure exclude each other");
  return TRUE;
}

int
weft_cli_program (int argc, char **argv)
{
  struct request r = { .role = NULL };
  const struct weft_cli_flag flags[] = {
    { "role", "N", "the pipeline stage whose program is printed [0]", NULL, &r.role },
    { "rank", "N", "print the program of the stage of this rank", NULL, &r.rank },
    { "init", NULL, "print the program before the first step: initial weights, broadcast_params",
      &r.init, NULL },
    { "dot", NULL, "print a graph for Graphviz", &r.dot, NULL },
    { "schedule", NULL, "print the pipeline schedule of all ranks as a grid", &r.schedule, NULL },
    { "csv", NULL, "print the schedule in PyTorch's pipeline grammar", &r.csv, NULL },
    WEFT_CLI_FIGURE_FLAGS (&r.figure, "the schedule"),
    { "chakra", "DIR",
      "write the program of each rank, or of --rank, to DIR as a Chakra execution trace", NULL,
      &r.chakra },
    { "read", "FILE", "check a program in text form and print it again", NULL, &r.read },
  };
  const struct weft_cli_page page = {
    .usage = "weft program [JOB] [--role N | --rank N] [--json | --dot]\n"
             "       weft program [JOB] --schedule [--json | --csv | --figure FILE]\n"
             "       weft program [JOB] --chakra DIR [--rank N]\n"
             "       weft program --read FILE [--json | --dot]",
    .doc =
        "Prints the program of one pipeline stage, which all its ranks run in a step: names, "
        "shapes, buffers, parameters, then the ops in order, each with the buffers it uses and the "
        "ops it depends on.  --chakra writes the programs of all ranks for ASTRA-sim "
        "(docs/chakra.md).",
    .examples = "  weft program --model llama-nano --topology cpu --gpus 8\n"
                "  weft program job.ini --role 1 --dot | dot -Tsvg > role1.svg\n"
                "  weft program job.ini --schedule --figure schedule.pdf\n"
                "  weft program job.ini --chakra traces\n"
                "  weft program --read role1.txt --json\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  g_auto (weft_cli_input) input = { .operand = NULL };
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  int status = weft_cli_begin (&page, argc, argv, &input);
  if (status != WEFT_CLI_GO_ON)
    return status;
  r.json = input.json;
  if (!check_request (&r, &error) || !check_read (&r, &input, &error))
    return weft_cli_fail (error);
  if (r.read)
    return reprint (&r);
  if (!weft_cli_job (&input, &job, &error))
    return weft_cli_fail (error);
  return r.schedule ? print_schedule (&r, &job) : print_program (&r, &job);
}
