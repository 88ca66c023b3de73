#include "cli/sure.h"
#include "cli/ask.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/cluster/groups.h"
#include "planner/memory_risk.h"
#include <math.h>
#include <stdio.h>

/* The words for each quantity in text and JSON. */
static const struct {
  const char *label, *member, *unit;
} shown[WEFT_N_QUANTITY] = {
  [WEFT_TIME] = { "step time", "time", "s" },
  [WEFT_MEMORY] = { "memory", "memory", "B" },
};

enum { INDENT = 14 };

weft_cli_sure *
weft_cli_sure_new (GError **error)
{
  weft_errors *errors = weft_errors_load (NULL, error);

  if (!errors)
    return NULL;
  weft_cli_sure *sure = g_new0 (weft_cli_sure, 1);
  sure->errors = errors;
  sure->bands = weft_bands_new (errors);
  return sure;
}

void
weft_cli_sure_free (weft_cli_sure *sure)
{
  weft_bands_free (sure->bands);
  weft_errors_free (sure->errors);
  g_free (sure);
}

static double
value_of (const struct weft_cli_answer *answer, enum weft_quantity quantity)
{
  return quantity == WEFT_TIME ? answer->seconds : answer->bytes;
}

/* ------------------------------------------------------------------------------ text */

/* A band as text: "7.77 s to 8.82 s (-4 .. +9 %)". The caller frees the text. */
static char *
range_text (const struct weft_band *band, double value, const char *unit)
{
  g_autofree char *low = weft_units_human (value * (1 + band->low), unit);
  g_autofree char *high = weft_units_human (value * (1 + band->high), unit);

  return g_strdup_printf ("%s to %s (%+.0f .. %+.0f %%)", g_strstrip (low), g_strstrip (high),
                          100 * band->low, 100 * band->high);
}

static void
append_risk (GString *text, weft_cli_sure *sure, const struct weft_cli_answer *answer)
{
  double capacity = answer->job->cluster.f.gpu_memory;
  g_autofree char *memory = weft_units_human (capacity, "B");

  if (answer->bytes <= capacity &&
      weft_memory_is_risky (sure->bands, answer->job, answer->bytes))
    g_string_append_printf (text, "; may not fit in the %s of the GPU", g_strstrip (memory));
}

static void
print_band (weft_cli_sure *sure, const struct weft_cli_answer *answer,
            const struct weft_traits *traits, enum weft_quantity quantity)
{
  struct weft_band band = weft_bands_of (sure->bands, traits, quantity);
  g_autofree char *warning = weft_band_warning (&band, traits);
  g_autoptr (GString) text = g_string_new (NULL);

  if (band.rows) {
    g_autofree char *range = range_text (&band, value_of (answer, quantity),
                                         shown[quantity].unit);
    g_autofree char *group = weft_band_group (&band, traits);
    g_string_append_printf (text, "%s: %u runs, %u source%s, median error %.1f %%; %s", range,
                            band.rows, band.sources, band.sources == 1 ? "" : "s",
                            100 * band.median, group);
    if (quantity == WEFT_MEMORY)
      append_risk (text, sure, answer);
    g_string_append (text, warning ? "; " : "");
  }
  g_string_append (text, warning ? warning : "");
  printf ("  %-*s", INDENT - 2, shown[quantity].label);
  weft_cli_print_wrapped (text->str, INDENT, MIN (weft_cli_columns (), 100));
}

void
weft_cli_print_sure (weft_cli_sure *sure, const struct weft_cli_answer *answer)
{
  const struct weft_traits traits = weft_traits_of (answer->job);

  printf ("\nband in which %.0f %% of published runs lie (docs/accuracy.md)\n",
          100 * WEFT_BAND_SHARE);
  if (weft_cluster_is_mixed (&answer->job->cluster)) {
    printf ("  none: no published run is on several kinds of nodes\n");
    return;
  }
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++)
    if (!isnan (value_of (answer, quantity)))
      print_band (sure, answer, &traits, quantity);
}

/* ------------------------------------------------------------------------------ JSON */

static void
add_band (JsonBuilder *b, const struct weft_band *band, const struct weft_traits *traits,
          double value)
{
  g_autofree char *group = weft_band_group (band, traits);
  g_autofree char *warning = weft_band_warning (band, traits);

  weft_json_real_or_null (b, "low", band->low);
  weft_json_real_or_null (b, "high", band->high);
  weft_json_real_or_null (b, "low_value", value * (1 + band->low));
  weft_json_real_or_null (b, "high_value", value * (1 + band->high));
  weft_json_real_or_null (b, "median_error", band->median);
  weft_json_real_or_null (b, "margin", band->margin);
  weft_json_real (b, "share", WEFT_BAND_SHARE);
  weft_json_int (b, "rows", band->rows);
  weft_json_int (b, "sources", band->sources);
  weft_json_int (b, "near_rows", band->near_rows);
  weft_json_text (b, "nearness", weft_nearness_words[band->nearness]);
  weft_json_text (b, "group", group);
  if (warning)
    weft_json_text (b, "warning", warning);
  else
    weft_json_null (b, "warning");
}

void
weft_cli_add_sure (weft_cli_sure *sure, JsonBuilder *b, const struct weft_cli_answer *answer)
{
  const struct weft_traits traits = weft_traits_of (answer->job);

  if (weft_cluster_is_mixed (&answer->job->cluster)) {
    weft_json_null (b, "accuracy");
    return;
  }
  weft_json_object (b, "accuracy");
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++) {
    if (isnan (value_of (answer, quantity)))
      continue;
    struct weft_band band = weft_bands_of (sure->bands, &traits, quantity);
    weft_json_object (b, shown[quantity].member);
    add_band (b, &band, &traits, value_of (answer, quantity));
    json_builder_end_object (b);
  }
  json_builder_end_object (b);
}
