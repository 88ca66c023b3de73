/* weft validate --nccl: predicts every row of a table of measured collectives and prints the
 * errors. */
#include "cli/validate_nccl.h"
#include "cli/cli.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "planner/nccl.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t
count_predicted (const weft_nccl *nccl)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < nccl->n_row; i++)
    n += !nccl->row[i].why;
  return n;
}

/* ------------------------------------------------------------------------ text */

static void
print_cell (const struct weft_validate_errors *e)
{
  if (e->n)
    printf (" %5.1f %-3u", 100 * e->median, e->n);
  else
    printf (" %5s %-3s", "-", "");
}

/* Prints a line of the table: the median errors of one fabric (NULL: of all fabrics), by size of
 * the collectives. */
static void
print_fabric (const weft_nccl *nccl, const char *fabric, int width)
{
  printf ("%-*s", width, fabric ? fabric : "all");
  for (int size = 0; size <= WEFT_N_NCCL_SIZE; size++) {
    struct weft_validate_errors e = weft_nccl_sum (nccl, fabric, size);
    print_cell (&e);
  }
  printf ("\n");
}

static void
print_table (const weft_nccl *nccl)
{
  g_autofree const char **fabrics = weft_nccl_fabrics (nccl);
  int width = strlen ("fabric");

  for (unsigned i = 0; fabrics[i]; i++)
    width = MAX (width, (int) strlen (fabrics[i]));
  printf ("%-*s", width, "fabric");
  for (int size = 0; size <= WEFT_N_NCCL_SIZE; size++)
    printf (" %9s", size < WEFT_N_NCCL_SIZE ? weft_nccl_size_names[size] : "all");
  printf ("\n");
  for (unsigned i = 0; fabrics[i]; i++)
    print_fabric (nccl, fabrics[i], width);
  print_fabric (nccl, NULL, width);
}

static void
print_refused (const weft_nccl *nccl)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  for (uint32_t i = 0; i < nccl->n_row; i++) {
    const char *why = nccl->row[i].why;
    uint32_t n = 0;
    if (!why || !g_hash_table_add (seen, (char *) why))
      continue;
    for (uint32_t k = i; k < nccl->n_row; k++)
      n += nccl->row[k].why && g_str_equal (nccl->row[k].why, why);
    if (g_hash_table_size (seen) == 1)
      printf ("\nrefused\n");
    printf ("%5u  %s\n", n, why);
  }
}

static void
print_row (const struct weft_nccl_row *row)
{
  if (row->why) {
    printf ("%5u  refused: %s\n", row->line, row->why);
    return;
  }
  g_autofree char *bytes = weft_units_human (row->bytes, "B");
  printf ("%5u  %-26s %-14s %5u %4u %9s  %-13s %10.1f %10.1f  %+7.1f%%%s\n", row->line, row->fabric,
          weft_op_info[row->kind].word, row->ranks, row->nodes, bytes, row->algorithm,
          1e6 * row->predicted_s, 1e6 * row->measured_s, 100 * row->error,
          row->context ? "  not counted" : "");
}

static void
print_rows (const weft_nccl *nccl)
{
  printf ("\n%5s  %-26s %-14s %5s %4s %9s  %-13s %10s %10s  %8s\n", "line", "fabric", "collective",
          "ranks", "node", "size", "algorithm", "predicted", "us", "error");
  for (uint32_t i = 0; i < nccl->n_row; i++)
    print_row (&nccl->row[i]);
}

static void
print_text (const weft_nccl *nccl, gboolean verbose)
{
  uint32_t n = count_predicted (nccl);

  printf ("%u rows: %u predicted, %u refused. Median of the absolute errors in %% and number\n"
          "of rows, by fabric and by size of the tensor, from the size in the head of a column\n"
          "up to that of the next column.\n\n",
          nccl->n_row, n, nccl->n_row - n);
  print_table (nccl);
  print_refused (nccl);
  if (verbose)
    print_rows (nccl);
}

/* ------------------------------------------------------------------------ JSON */

static void
add_errors (JsonBuilder *b, const weft_nccl *nccl, const char *fabric, enum weft_nccl_size size)
{
  struct weft_validate_errors e = weft_nccl_sum (nccl, fabric, size);

  json_builder_begin_object (b);
  weft_json_text (b, "size", size < WEFT_N_NCCL_SIZE ? weft_nccl_size_names[size] : "all");
  weft_json_int (b, "n", e.n);
#define ADD(name, doc) weft_json_real_or_null (b, #name, e.name);
  WEFT_VALIDATE_ERROR_LIST (ADD)
#undef ADD
  json_builder_end_object (b);
}

static void
add_fabric (JsonBuilder *b, const weft_nccl *nccl, const char *fabric)
{
  json_builder_begin_object (b);
  weft_json_text (b, "fabric", fabric ? fabric : "all");
  weft_json_array (b, "sizes");
  for (int size = 0; size <= WEFT_N_NCCL_SIZE; size++)
    add_errors (b, nccl, fabric, size);
  json_builder_end_array (b);
  json_builder_end_object (b);
}

static void
add_row (JsonBuilder *b, const struct weft_nccl_row *row)
{
  json_builder_begin_object (b);
  weft_json_int (b, "line", row->line);
  if (row->why) {
    weft_json_text (b, "refused", row->why);
  } else {
    weft_json_text (b, "fabric", row->fabric);
    weft_json_text (b, "collective", weft_op_info[row->kind].word);
    weft_json_int (b, "ranks", row->ranks);
    weft_json_int (b, "nodes", row->nodes);
    weft_json_real (b, "bytes", row->bytes);
    weft_json_text (b, "algorithm", row->algorithm);
    weft_json_real (b, "predicted_s", row->predicted_s);
    weft_json_real (b, "measured_s", row->measured_s);
    weft_json_real (b, "error", row->error);
    weft_json_bool (b, "counted", !row->context);
  }
  json_builder_end_object (b);
}

static void
print_json (const weft_nccl *nccl)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autofree const char **fabrics = weft_nccl_fabrics (nccl);

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.nccl/1");
  weft_json_int (b, "rows", nccl->n_row);
  weft_json_int (b, "predicted", count_predicted (nccl));
  weft_json_array (b, "fabrics");
  for (unsigned i = 0; fabrics[i]; i++)
    add_fabric (b, nccl, fabrics[i]);
  add_fabric (b, nccl, NULL);
  json_builder_end_array (b);
  weft_json_array (b, "per_row");
  for (uint32_t i = 0; i < nccl->n_row; i++)
    add_row (b, &nccl->row[i]);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

int
weft_cli_validate_nccl (const char *table, const char *rules, gboolean verbose, gboolean json)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_nccl) nccl = weft_nccl_load (table, rules, &error);

  if (!nccl)
    return weft_cli_fail (error);
  weft_nccl_predict (nccl, NULL, NULL);
  if (json)
    print_json (nccl);
  else
    print_text (nccl, verbose);
  return 0;
}
