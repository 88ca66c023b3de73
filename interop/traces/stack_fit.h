/* stack_fit.h - fits efficiencies of a software stack to one profile.
 *
 * A field is the fraction of a rate that one class of kernels reaches. The field is changed within
 * its range until the predicted seconds of these kernels, without contention and without the gaps
 * between kernels, equal the seconds in the profile. `weft fit` (planner/fit.h) fits more
 * constants, but to several measured steps. */
#pragma once
#include "interop/traces/measured.h"

struct weft_stack_fitted {
  unsigned row;                /* row of weft_stack_table */
  enum weft_work work;
  double before, after;        /* values of the field */
  /* seconds of the class, mean over the ranks; `predicted` is with the value `after` */
  double predicted, measured;
};

/* Fits the fields of all classes that the profile has. The plan is priced anew meanwhile, and has
 * its old prices afterwards. The caller frees the array of struct weft_stack_fitted. */
GArray *weft_stack_fit_new (weft_plan *plan, const weft_measured *measured);

/* A stack file with these values, which takes all other fields from the job's stack. `source` names
 * the profile. The caller frees the text. */
char *weft_stack_fit_print (const weft_plan *plan, const GArray *fitted, const char *source);
