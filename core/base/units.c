#include "core/base/units.h"
#include "core/base/error.h"
#include <math.h>
#include <string.h>

static const struct {
  const char *text;
  double factor;
} prefixes[] = { { "Ki", 1024.0 }, { "Mi", 0x1p20 }, { "Gi", 0x1p30 }, { "Ti", 0x1p40 },
                 { "k", 1e3 },     { "K", 1e3 },     { "M", 1e6 },     { "G", 1e9 },
                 { "T", 1e12 },    { "P", 1e15 },    { "m", 1e-3 },    { "u", 1e-6 },
                 { "n", 1e-9 },    { "", 1.0 } };

/* Sets the factor from unit `found` to `unit`: 1 if they are equal or `found` is empty, 1/8 from
 * bits to bytes ("b" to "B", "b/s" to "B/s").  FALSE for any other unit. */
static gboolean
unit_factor (const char *found, const char *unit, double *factor)
{
  *factor = 1.0;
  if (strcmp (found, unit) == 0 || *found == '\0')
    return TRUE;
  if (found[0] == 'b' && unit[0] == 'B' && strcmp (found + 1, unit + 1) == 0) {
    *factor = 1.0 / 8.0;
    return TRUE;
  }
  return FALSE;
}

gboolean
weft_units_parse (const char *text, const char *unit, double *out, GError **error)
{
  char *rest;
  double value = g_ascii_strtod (text, &rest);

  if (rest == text || !isfinite (value))
    return weft_bad_input (error, "found \"%s\", wanted a number%s%s", text, *unit ? " in " : "",
                           unit);
  while (*rest == ' ')
    rest++;
  for (size_t i = 0; i < G_N_ELEMENTS (prefixes); i++) {
    double factor;
    if (g_str_has_prefix (rest, prefixes[i].text) &&
        unit_factor (rest + strlen (prefixes[i].text), unit, &factor)) {
      *out = value * prefixes[i].factor * factor;
      if (isfinite (*out))
        return TRUE;
    }
  }
  return weft_bad_input (error, "found \"%s\", wanted a number%s%s", text, *unit ? " in " : "",
                         unit);
}

char *
weft_units_print (double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  for (int digits = 6; digits <= 17; digits++) {
    g_autofree char *format = g_strdup_printf ("%%.%dg", digits);
    g_ascii_formatd (text, sizeof text, format, value);
    if (g_ascii_strtod (text, NULL) == value)
      break;
  }
  return g_strdup (text);
}

char *
weft_units_human (double value, const char *unit)
{
  static const char up[] = " kMGTPE", down[] = " munp";
  int step = 0;
  double size = fabs (value);

  while (size >= 999.5 && step < 6) {
    size /= 1000;
    step++;
  }
  if (strcmp (unit, "s") == 0)
    while (size > 0 && size < 0.9995 && step > -4) {
      size *= 1000;
      step--;
    }
  char prefix[2] = { step > 0 ? up[step] : step < 0 ? down[-step] : '\0', '\0' };
  return g_strdup_printf ("%s%.3g %s%s", value < 0 ? "-" : "", size, prefix, unit);
}
