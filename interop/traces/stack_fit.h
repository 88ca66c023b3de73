/* stack_fit.h - efficiencies of a software stack, out of one profile.
 *
 * A field is a share of a rate that one class of kernels reaches. It is changed until the seconds
 * of these kernels in the program, priced alone and without the gaps between them, are those of the
 * profile; it stays within its range. `weft fit` (planner/fit.h) fits more constants, but to
 * several measured steps. */
#pragma once
#include "interop/traces/measured.h"

struct weft_stack_fitted {
  unsigned row;                /* of weft_stack_table */
  enum weft_work work;
  double before, after;        /* values of the field */
  double predicted, measured;  /* seconds of the class, of the mean rank; predicted with `after` */
};

/* Fits the fields of all classes that the profile has. The plan is priced anew meanwhile, and has
 * its old prices afterwards. The caller frees the array of struct weft_stack_fitted. */
GArray *weft_stack_fit_new (weft_plan *plan, const weft_measured *measured);

/* A stack file with these values, which takes all other fields from the job's stack. `source` names
 * the profile. The caller frees the text. */
char *weft_stack_fit_print (const weft_plan *plan, const GArray *fitted, const char *source);
