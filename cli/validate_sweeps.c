#include "cli/validate_sweeps.h"
#include "core/base/json.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define APART " (apart)"

static int
widest_name (const GArray *orders)
{
  int width = strlen ("order of strategies");

  for (guint i = 0; i < orders->len; i++) {
    const struct weft_sweep_order *order = &g_array_index (orders, struct weft_sweep_order, i);
    width = MAX (width, (int) strlen (order->name) + (order->apart ? (int) strlen (APART) : 0));
  }
  return width;
}

static void
print_order (const struct weft_sweep_order *order, int width)
{
  g_autofree char *name = g_strconcat (order->name, order->apart ? APART : "", NULL);

  printf ("%-*s %5u %10u  %7.2f %7.2f", width, name, order->rows, order->strategies,
          order->spearman, order->kendall);
  if (order->pairs)
    printf (" %6.0f %% of %-5u", 100 * order->right, order->pairs);
  else
    printf (" %17s", "");
  printf (" %4u%s  %s\n", order->place, order->top ? " " : "!", order->best);
}

static void
print_ratio_error (const weft_errors *errors)
{
  struct weft_ratio_error ratio = weft_sweeps_ratio_error (errors);

  if (ratio.pairs)
    printf ("the ratio of two predicted times is off by less than %.1f %% in %.0f %% of %u such "
            "pairs (%u sweeps)\n",
            100 * ratio.error, 100 * WEFT_SWEEP_SHARE, ratio.pairs, ratio.sweeps);
}

void
weft_cli_print_sweeps (const weft_errors *errors)
{
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  int width = widest_name (orders);

  if (orders->len == 0)
    return;
  printf ("\n%-*s  rows strategies  spearman kendall  pairs in order   place of the best\n", width,
          "order of strategies");
  for (guint i = 0; i < orders->len; i++)
    print_order (&g_array_index (orders, struct weft_sweep_order, i), width);
  printf ("pairs: rows with the same GPUs, batch, precision and release; place: that of the "
          "fastest row in the\npredicted order, ! outside of the first tenth\n");
  print_ratio_error (errors);
}

static void
add_order (JsonBuilder *b, const struct weft_sweep_order *order)
{
  json_builder_begin_object (b);
  weft_json_text (b, "sweep", order->name);
  weft_json_bool (b, "apart", order->apart);
  weft_json_int (b, "rows", order->rows);
  weft_json_int (b, "strategies", order->strategies);
  weft_json_real_or_null (b, "spearman", order->spearman);
  weft_json_real_or_null (b, "spearman_reachable", order->reachable);
  weft_json_real_or_null (b, "kendall", order->kendall);
  weft_json_int (b, "pairs", order->pairs);
  weft_json_real_or_null (b, "pairs_in_order", order->right);
  weft_json_text (b, "best", order->best);
  weft_json_int (b, "place_of_best", order->place);
  weft_json_bool (b, "best_in_first_tenth", order->top);
  json_builder_end_object (b);
}

void
weft_cli_add_sweeps (JsonBuilder *b, const weft_errors *errors)
{
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  struct weft_ratio_error ratio = weft_sweeps_ratio_error (errors);

  weft_json_array (b, "sweeps");
  for (guint i = 0; i < orders->len; i++)
    add_order (b, &g_array_index (orders, struct weft_sweep_order, i));
  json_builder_end_array (b);
  weft_json_object (b, "ratio_error");
  weft_json_real_or_null (b, "error", ratio.error);
  weft_json_real (b, "share", WEFT_SWEEP_SHARE);
  weft_json_int (b, "pairs", ratio.pairs);
  weft_json_int (b, "sweeps", ratio.sweeps);
  json_builder_end_object (b);
}
