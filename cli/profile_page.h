/* profile_page.h - a prediction beside a measured trace: the step, time by class of op and axis,
 * and where MFU is lost. */
#pragma once
#include "core/report/waterfall.h"
#include "interop/traces/measured.h"
#include <json-glib/json-glib.h>

enum { WEFT_PREDICTED, WEFT_MEASURED, WEFT_N_PROFILE };

/* Both sides of a profile; it borrows plan, timeline, trace and measured. */
struct weft_profile {
  const weft_plan *plan;
  const weft_timeline *timeline;
  const weft_trace *trace;
  const weft_measured *measured;
  const char *name[WEFT_N_PROFILE]; /* job and trace, as the user typed them */
  struct weft_breakdown side[WEFT_N_PROFILE];
  struct weft_waterfall fall[WEFT_N_PROFILE];
};

/* Computes the breakdowns: the prediction's over the roles that the trace has. */
struct weft_profile weft_profile_new (const weft_plan *plan, const weft_timeline *timeline,
                                      const weft_trace *trace, const weft_measured *measured);

/* Appends the pages as text of at most 80 columns. */
void weft_profile_print (const struct weft_profile *p, GString *out);

/* Adds a document weft.profile/1 to a builder. */
void weft_profile_to_json (const struct weft_profile *p, JsonBuilder *b);
