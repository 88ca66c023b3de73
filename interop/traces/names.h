/* names.h - classes of kernels by name (names.def). */
#pragma once
#include "interop/traces/trace.h"

/* The class of a kernel by its name; WEFT_WORK_OTHER if no row of names.def knows it. */
enum weft_work weft_names_work (const char *name);

/* The class of a collective by the name that PyTorch records; WEFT_WORK_COMMUNICATION for an
 * unknown one. */
enum weft_work weft_names_collective (const char *name);

/* Sets the class of every kernel of a trace, and the axis of kernels and of copies between GPU and
 * host. The functions of axes.h set the axis of other communication. */
void weft_names_classify (weft_trace *trace);
